/* The messages by which a node hands its listening sockets to its successor; the codec only, no
 * I/O. Each is one packet (net/packet.h) of at most CV_TAKEOVER_BYTES_MAX bytes: "CVTO", version,
 * type, then the fields of the type; integers in network order, texts with a length before them.
 *
 *   new -> old  HELLO       its program version
 *   old -> new  OFFER       pid, number of sockets, what systemd gave it
 *   old -> new  ITEM        one socket, or the group of an address, with its descriptors
 *   new -> old  NEXT        that item has come (so few descriptors are on their way at a time)
 *   new -> old  PREPARED    which items it goes on with; everything is ready but accepting
 *   old -> new  COMMIT      accept; the old one still does, too
 *   new -> old  SERVING     it accepts on all of them
 *   old -> new  DONE        the old one accepts no more
 *   either      ABORT       why not; everything stays as it was
 *
 * The head and ABORT have this form in all versions, so that two programs that do not understand
 * each other can say so. */
#pragma once

#include "common/defs.h"

#define CV_TAKEOVER_VERSION   1
#define CV_TAKEOVER_BYTES_MAX 1024
#define CV_TAKEOVER_ITEMS_MAX 2048
#define CV_TAKEOVER_TEXT_MAX  200
#define CV_TAKEOVER_FDS_MAX   64 /* descriptors of one item: at most one per worker */

enum cv_takeover_type {
    CV_TAKEOVER_HELLO = 1,
    CV_TAKEOVER_OFFER,
    CV_TAKEOVER_ITEM,
    CV_TAKEOVER_NEXT,
    CV_TAKEOVER_PREPARED,
    CV_TAKEOVER_COMMIT,
    CV_TAKEOVER_SERVING,
    CV_TAKEOVER_DONE,
    CV_TAKEOVER_ABORT,
};

enum cv_takeover_kind {
    CV_TAKEOVER_ADDRESS = 1, /* TCP; one SO_REUSEPORT socket per worker of the old node */
    CV_TAKEOVER_UNIX,        /* a Unix socket of a listener */
    CV_TAKEOVER_PASSED,      /* came from systemd; a listener may or may not use it */
    CV_TAKEOVER_ADMIN,       /* of the admin API */
    CV_TAKEOVER_CONTROL,     /* on which the next takeover is asked for */
};

struct cv_takeover_item {
    uint16_t index;
    enum cv_takeover_kind kind;
    uint16_t n_fds; /* descriptors that come with it, 1..CV_TAKEOVER_FDS_MAX */
    char listen[CV_TAKEOVER_TEXT_MAX + 1]; /* as in the config, canonical */
    char name[CV_TAKEOVER_TEXT_MAX + 1];   /* of the listener; of a passed one its name */
    uint32_t number;                       /* PASSED: the descriptor's number at systemd's start */
    uint64_t dev, ino;                     /* of the file of a Unix socket; else 0 */
};

struct cv_takeover_msg {
    enum cv_takeover_type type;
    /* HELLO, OFFER: version of the program; ABORT: a reason, printable. */
    char text[CV_TAKEOVER_TEXT_MAX + 1];
    uint32_t pid;                             /* OFFER */
    uint16_t n_items;                         /* OFFER, PREPARED */
    uint16_t index;                           /* NEXT */
    uint32_t watchdog_ms;                     /* OFFER; 0 = none */
    char notify[CV_TAKEOVER_TEXT_MAX + 1];    /* OFFER; as NOTIFY_SOCKET writes it, "" = none */
    struct cv_takeover_item item;             /* ITEM */
    uint8_t taken[CV_TAKEOVER_ITEMS_MAX / 8]; /* PREPARED: bit 'index' */
};

/* Write 'm', whose fields are within their bounds, to 'out' of CV_TAKEOVER_BYTES_MAX bytes; the
 * length. */
size_t cv_takeover_encode(const struct cv_takeover_msg *m, uint8_t *out) CV_MUST_CHECK;
/* 0; CV_E_PROTO; CV_E_UNSUPPORTED: another version, and not an ABORT. */
int cv_takeover_decode(const void *data, size_t len, struct cv_takeover_msg *ret_m) CV_MUST_CHECK;

static inline bool cv_takeover_is_taken(const struct cv_takeover_msg *m, size_t index)
{
    return (m->taken[index / 8] >> index % 8 & 1) != 0;
}
static inline void cv_takeover_set_taken(struct cv_takeover_msg *m, size_t index)
{
    m->taken[index / 8] |= (uint8_t)(1u << index % 8);
}
