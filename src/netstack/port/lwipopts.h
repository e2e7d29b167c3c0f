/* lwIP's options. One thread calls it, there is no operating system layer, no socket layer, no
 * Ethernet; memory comes from the heap of the process; timers are driven by netstack/user.c. */
#pragma once

#define NO_SYS                          1
#define SYS_LIGHTWEIGHT_PROT            0
#define LWIP_SOCKET                     0
#define LWIP_NETCONN                    0
#define LWIP_TIMERS                     0
#define LWIP_SINGLE_NETIF               0
#define LWIP_NETIF_LOOPBACK             0
#define LWIP_HAVE_LOOPIF                0
#define LWIP_NETIF_HOSTNAME             0
#define LWIP_STATS                      0
#define LWIP_ARP                        0
#define LWIP_ETHERNET                   0
#define LWIP_DHCP                       0
#define LWIP_AUTOIP                     0
#define LWIP_IGMP                       0
#define LWIP_DNS                        0
#define LWIP_RAW                        0
#define LWIP_ALTCP                      0
#define LWIP_IPV4                       1
#define LWIP_IPV6                       1
#define LWIP_IPV6_MLD                   0
#define LWIP_IPV6_AUTOCONFIG            0
#define LWIP_IPV6_SEND_ROUTER_SOLICIT   0
#define LWIP_IPV6_DUP_DETECT_ATTEMPTS   0
#define LWIP_IPV6_DHCP6                 0
#define LWIP_IPV6_SCOPES                0
#define LWIP_ND6_LISTEN_RA              0
#define LWIP_ND6_QUEUEING               0
#define LWIP_ND6_TCP_REACHABILITY_HINTS 0
#define LWIP_NUM_NETIF_CLIENT_DATA      0
#define LWIP_UDP                        1
#define LWIP_TCP                        1
#define LWIP_ICMP                       1
#define LWIP_ICMP6                      1
#define LWIP_BROADCAST_PING             0
#define LWIP_MULTICAST_PING             0
#define IP_FORWARD                      0
#define IP_OPTIONS_ALLOWED              1
#define IP_SOF_BROADCAST                1
#define IP_REASSEMBLY                   1
#define IP_REASS_MAX_PBUFS              512
#define IP_REASS_MAXAGE                 15
#define IP_FRAG                         1
#define LWIP_IPV6_FRAG                  1
#define LWIP_IPV6_REASS                 1
#define IPV6_FRAG_COPYHEADER            1
#define LWIP_CHECKSUM_ON_COPY           0

#define MEM_LIBC_MALLOC              1
#define MEMP_MEM_MALLOC              1
#define MEM_ALIGNMENT                8
#define mem_clib_malloc              cv_lwip_malloc
#define mem_clib_free                cv_lwip_free
#define mem_clib_calloc              calloc
#define PBUF_LINK_HLEN               0
#define PBUF_LINK_ENCAPSULATION_HLEN 0
#define MEMP_NUM_TCP_SEG             65535
#define MEMP_NUM_REASSDATA           64

#define LWIP_CHKSUM cv_lwip_checksum

#define TCP_TTL                            64
#define TCP_MSS                            1460
#define TCP_WND                            (4u * 1024 * 1024)
#define LWIP_WND_SCALE                     1
#define TCP_RCV_SCALE                      7
#define TCP_SND_BUF                        (4u * 1024 * 1024)
#define TCP_SND_QUEUELEN                   16000
#define TCP_SNDLOWAT                       (64u * 1024)
#define TCP_SNDQUEUELOWAT                  4000
#define TCP_WND_UPDATE_THRESHOLD           (16u * TCP_MSS)
#define TCP_OVERSIZE                       TCP_MSS
#define TCP_QUEUE_OOSEQ                    1
#define TCP_OOSEQ_TIMEOUT                  64
#define LWIP_TCP_SACK_OUT                  1
#define LWIP_TCP_MAX_SACK_NUM              4
#define LWIP_TCP_TIMESTAMPS                0
#define LWIP_TCP_KEEPALIVE                 1
#define TCP_LISTEN_BACKLOG                 0
#define TCP_TMR_INTERVAL                   50
#define TCP_MSL                            15000
#define TCP_MAXRTX                         12
#define TCP_SYNMAXRTX                      6
#define LWIP_TCP_RTO_TIME                  1000
#define LWIP_TCP_PCB_NUM_EXT_ARGS          0
#define SO_REUSE                           0
#define LWIP_DISABLE_TCP_SANITY_CHECKS     1
#define LWIP_HOOK_NETIF_MSS(netif)         cv_lwip_netif_mss(netif)
#define CV_TCP_REXMIT(pcb)                 cv_lwip_rexmit((pcb)->netif_idx)
#define LWIP_HOOK_IP4_ROUTE_SRC(src, dest) ((struct netif *)cv_lwip_route())
#define LWIP_HOOK_IP6_ROUTE(src, dest)     ((struct netif *)cv_lwip_route())

/* Its assertions are checked in the builds that look for bugs. */
#ifndef CV_LWIP_ASSERT
#define LWIP_NOASSERT 1
#endif
