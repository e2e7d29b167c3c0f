#include "proto/socks5.h"

#include <errno.h>

#include "common/rd.h"

#include "common/poison.h"

#define LOGIN_VERSION 0x01

/* Length of an address of type 'atyp' without the length byte of a name; -1: unknown type. */
static int addr_len(uint8_t atyp)
{
    switch (atyp) {
    case CV_SOCKS5_ATYP_IP4:
        return 4;
    case CV_SOCKS5_ATYP_IP6:
        return 16;
    case CV_SOCKS5_ATYP_NAME:
        return 0;
    default:
        return -1;
    }
}

/* Read the address and port that end both requests and replies. */
static const uint8_t *read_addr(struct cv_rd *r, uint8_t atyp, uint8_t *ret_len, uint16_t *ret_port)
{
    int n = atyp == CV_SOCKS5_ATYP_NAME ? cv_rd_u8(r) : addr_len(atyp);
    const uint8_t *addr = cv_rd_bytes(r, (size_t)n);
    *ret_len = (uint8_t)n;
    *ret_port = cv_rd_u16(r);
    return addr;
}

static void ip_from_wire(struct cv_ip *ret_ip, const uint8_t *addr, uint8_t len)
{
    *ret_ip = (struct cv_ip){.family = len == 4 ? CV_AF_IP4 : CV_AF_IP6};
    memcpy(ret_ip->b, addr, len);
    cv_ip_fold_mapped(ret_ip);
}

int cv_socks5_greeting_parse(const uint8_t *in, size_t len, struct cv_socks5_greeting *ret_greeting,
                             size_t *ret_used)
{
    struct cv_rd r;
    cv_rd_init(&r, in, len);
    if (cv_rd_u8(&r) != CV_SOCKS5_VERSION && r.err == 0)
        return CV_E_PROTO;
    uint8_t n = cv_rd_u8(&r);
    const uint8_t *methods = cv_rd_bytes(&r, n);
    if (r.err != 0)
        return r.err;
    *ret_greeting = (struct cv_socks5_greeting){
        .none = memchr(methods, CV_SOCKS5_METHOD_NONE, n) != NULL,
        .login = memchr(methods, CV_SOCKS5_METHOD_LOGIN, n) != NULL,
    };
    *ret_used = len - r.left;
    return 0;
}

int cv_socks5_login_parse(const uint8_t *in, size_t len, struct cv_socks5_login *ret_login,
                          size_t *ret_used)
{
    struct cv_rd r;
    cv_rd_init(&r, in, len);
    if (cv_rd_u8(&r) != LOGIN_VERSION && r.err == 0)
        return CV_E_PROTO;
    uint8_t user_len = cv_rd_u8(&r);
    const uint8_t *user = cv_rd_bytes(&r, user_len);
    uint8_t pass_len = cv_rd_u8(&r);
    const uint8_t *pass = cv_rd_bytes(&r, pass_len);
    if (r.err != 0)
        return r.err;
    *ret_login = (struct cv_socks5_login){
        .user = (const char *)user,
        .pass = (const char *)pass,
        .user_len = user_len,
        .pass_len = pass_len,
    };
    *ret_used = len - r.left;
    return 0;
}

int cv_socks5_request_parse(const uint8_t *in, size_t len, struct cv_socks5_request *ret_request,
                            size_t *ret_used)
{
    struct cv_rd r;
    cv_rd_init(&r, in, len);
    if (cv_rd_u8(&r) != CV_SOCKS5_VERSION && r.err == 0)
        return CV_E_PROTO;
    /* An unknown command may have any form after it, so it is judged before the address. */
    uint8_t cmd = cv_rd_u8(&r);
    if (r.err == 0 && cmd != CV_SOCKS5_CMD_CONNECT && cmd != CV_SOCKS5_CMD_UDP)
        return CV_E_UNSUPPORTED;
    cv_rd_u8(&r); /* reserved */
    uint8_t atyp = cv_rd_u8(&r);
    if (r.err != 0)
        return r.err;
    if (addr_len(atyp) < 0)
        return -EAFNOSUPPORT;
    struct cv_socks5_request q = {.cmd = (enum cv_socks5_cmd)cmd,
                                  .atyp = (enum cv_socks5_atyp)atyp};
    q.addr = read_addr(&r, atyp, &q.addr_len, &q.port);
    if (r.err != 0)
        return r.err;
    *ret_request = q;
    *ret_used = len - r.left;
    return 0;
}

int cv_socks5_request_target(const struct cv_socks5_request *request, struct cv_target *ret_target)
{
    if (request->port == 0)
        return CV_E_PARSE;
    if (request->atyp == CV_SOCKS5_ATYP_NAME) {
        int ret = cv_host_parse((const char *)request->addr, request->addr_len, &ret_target->host);
        if (ret != 0)
            return ret;
    } else {
        struct cv_ip ip;
        ip_from_wire(&ip, request->addr, request->addr_len);
        cv_host_from_ip(&ret_target->host, &ip);
    }
    ret_target->port = request->port;
    return 0;
}

void cv_socks5_method_encode(uint8_t out[2], enum cv_socks5_method method)
{
    out[0] = CV_SOCKS5_VERSION;
    out[1] = (uint8_t)method;
}

void cv_socks5_login_reply_encode(uint8_t out[2], bool ok)
{
    out[0] = LOGIN_VERSION;
    out[1] = ok ? 0x00 : 0x01;
}

size_t cv_socks5_reply_encode(uint8_t out[CV_SOCKS5_ANSWER_MAX], uint8_t rep,
                              const struct cv_endpoint *bnd)
{
    static const struct cv_endpoint nowhere = {.ip = {.family = CV_AF_IP4}};
    if (bnd == NULL || bnd->ip.family == CV_AF_NONE)
        bnd = &nowhere;
    bool ip4 = bnd->ip.family == CV_AF_IP4;
    struct cv_wr w;
    cv_wr_init(&w, out, CV_SOCKS5_ANSWER_MAX);
    cv_wr_u8(&w, CV_SOCKS5_VERSION);
    cv_wr_u8(&w, rep);
    cv_wr_u8(&w, 0);
    cv_wr_u8(&w, ip4 ? CV_SOCKS5_ATYP_IP4 : CV_SOCKS5_ATYP_IP6);
    cv_wr_bytes(&w, bnd->ip.b, ip4 ? 4 : 16);
    cv_wr_u16(&w, bnd->port);
    return w.len;
}

int cv_socks5_reply_parse(const uint8_t *in, size_t len, struct cv_socks5_reply *ret_reply,
                          size_t *ret_used)
{
    struct cv_rd r;
    cv_rd_init(&r, in, len);
    if (cv_rd_u8(&r) != CV_SOCKS5_VERSION && r.err == 0)
        return CV_E_PROTO;
    struct cv_socks5_reply reply = {.rep = cv_rd_u8(&r)};
    if (r.err == 0 && reply.rep != CV_SOCKS5_REP_OK) {
        *ret_reply = reply;
        *ret_used = len - r.left;
        return 0;
    }
    cv_rd_u8(&r); /* reserved */
    uint8_t atyp = cv_rd_u8(&r);
    if (r.err != 0)
        return r.err;
    if (addr_len(atyp) < 0)
        return CV_E_PROTO;
    uint8_t n;
    const uint8_t *addr = read_addr(&r, atyp, &n, &reply.bnd.port);
    if (r.err != 0)
        return r.err;
    if (atyp == CV_SOCKS5_ATYP_NAME)
        reply.bnd.ip = (struct cv_ip){.family = CV_AF_NONE};
    else
        ip_from_wire(&reply.bnd.ip, addr, n);
    *ret_reply = reply;
    *ret_used = len - r.left;
    return 0;
}

int cv_socks5_credential_check(size_t user_len, size_t pass_len)
{
    if (user_len > CV_SOCKS5_CREDENTIAL_MAX || pass_len > CV_SOCKS5_CREDENTIAL_MAX)
        return CV_E_LIMIT;
    if (user_len == 0)
        return CV_E_INVALID;
    return 0;
}

int cv_socks5_client_init(struct cv_socks5_client *c, enum cv_socks5_cmd cmd, const char *user,
                          size_t user_len, const char *pass, size_t pass_len,
                          const struct cv_target *target)
{
    *c = (struct cv_socks5_client){._target = target, ._cmd = cmd};
    if (user == NULL)
        return 0;
    int ret = cv_socks5_credential_check(user_len, pass_len);
    if (ret != 0)
        return ret;
    c->_user = user;
    c->_user_len = (uint8_t)user_len;
    c->_pass = pass;
    c->_pass_len = (uint8_t)pass_len;
    return 0;
}

static void write_greeting(const struct cv_socks5_client *c, struct cv_wr *w)
{
    cv_wr_u8(w, CV_SOCKS5_VERSION);
    cv_wr_u8(w, 1);
    cv_wr_u8(w, c->_user != NULL ? CV_SOCKS5_METHOD_LOGIN : CV_SOCKS5_METHOD_NONE);
}

static void write_login(const struct cv_socks5_client *c, struct cv_wr *w)
{
    cv_wr_u8(w, LOGIN_VERSION);
    cv_wr_u8(w, c->_user_len);
    cv_wr_bytes(w, c->_user, c->_user_len);
    cv_wr_u8(w, c->_pass_len);
    cv_wr_bytes(w, c->_pass, c->_pass_len);
}

static void write_request(const struct cv_socks5_client *c, struct cv_wr *w)
{
    const struct cv_host *h = &c->_target->host;
    cv_wr_u8(w, CV_SOCKS5_VERSION);
    cv_wr_u8(w, (uint8_t)c->_cmd);
    cv_wr_u8(w, 0);
    switch (h->ip.family) {
    case CV_AF_IP4:
        cv_wr_u8(w, CV_SOCKS5_ATYP_IP4);
        cv_wr_bytes(w, h->ip.b, 4);
        break;
    case CV_AF_IP6:
        cv_wr_u8(w, CV_SOCKS5_ATYP_IP6);
        cv_wr_bytes(w, h->ip.b, 16);
        break;
    default:
        cv_wr_u8(w, CV_SOCKS5_ATYP_NAME);
        cv_wr_u8(w, h->name_len);
        cv_wr_bytes(w, h->name, h->name_len);
        break;
    }
    cv_wr_u16(w, c->_target->port);
}

static int on_method(struct cv_socks5_client *c, struct cv_rd *r, struct cv_wr *w)
{
    uint8_t ver = cv_rd_u8(r);
    if (r->err == 0 && ver != CV_SOCKS5_VERSION)
        return CV_E_PROTO;
    uint8_t method = cv_rd_u8(r);
    if (r->err != 0)
        return r->err;
    switch (method) {
    case CV_SOCKS5_METHOD_NONE: /* taken also when we offered a login: it costs nobody anything */
        write_request(c, w);
        c->state = CV_SOCKS5_CLIENT_STATE_REPLY;
        return 0;
    case CV_SOCKS5_METHOD_LOGIN:
        if (c->_user == NULL)
            return CV_E_AUTH;
        write_login(c, w);
        c->state = CV_SOCKS5_CLIENT_STATE_LOGIN;
        return 0;
    case CV_SOCKS5_METHOD_REFUSED:
        return CV_E_AUTH;
    default: /* one that was not offered */
        return CV_E_PROTO;
    }
}

static int on_login_reply(struct cv_socks5_client *c, struct cv_rd *r, struct cv_wr *w)
{
    uint8_t ver = cv_rd_u8(r);
    /* Some servers answer with the version of SOCKS in place of that of the login. */
    if (r->err == 0 && ver != LOGIN_VERSION && ver != CV_SOCKS5_VERSION)
        return CV_E_PROTO;
    uint8_t status = cv_rd_u8(r);
    if (r->err != 0)
        return r->err;
    if (status != 0)
        return CV_E_AUTH;
    write_request(c, w);
    c->state = CV_SOCKS5_CLIENT_STATE_REPLY;
    return 0;
}

static int on_reply(struct cv_socks5_client *c, struct cv_rd *r)
{
    size_t used;
    int ret = cv_socks5_reply_parse(r->p, r->left, &c->reply, &used);
    if (ret != 0)
        return ret;
    cv_rd_bytes(r, used);
    if (c->reply.rep != CV_SOCKS5_REP_OK)
        return CV_E_UNAVAILABLE;
    c->state = CV_SOCKS5_CLIENT_STATE_DONE;
    return 0;
}

/* One message of the server. 0: go on with the next one. */
static int client_message(struct cv_socks5_client *c, struct cv_rd *r, struct cv_wr *w)
{
    switch (c->state) {
    case CV_SOCKS5_CLIENT_STATE_INIT:
        write_greeting(c, w);
        c->state = CV_SOCKS5_CLIENT_STATE_METHOD;
        return 0;
    case CV_SOCKS5_CLIENT_STATE_METHOD:
        return on_method(c, r, w);
    case CV_SOCKS5_CLIENT_STATE_LOGIN:
        return on_login_reply(c, r, w);
    case CV_SOCKS5_CLIENT_STATE_REPLY:
        return on_reply(c, r);
    case CV_SOCKS5_CLIENT_STATE_DONE:
    case CV_SOCKS5_CLIENT_STATE_FAILED:
        break;
    }
    return CV_E_PROTO;
}

int cv_socks5_client_step(struct cv_socks5_client *c, const uint8_t *in, size_t len,
                          size_t *ret_used, uint8_t out[CV_SOCKS5_CLIENT_OUT_MAX],
                          size_t *ret_out_len)
{
    struct cv_rd r;
    struct cv_wr w;
    cv_rd_init(&r, in, len);
    cv_wr_init(&w, out, CV_SOCKS5_CLIENT_OUT_MAX);
    *ret_used = 0;
    int ret;
    do {
        /* A message that is cut short leaves the cursor where it ends; count whole ones only. */
        ret = client_message(c, &r, &w);
        if (ret == 0)
            *ret_used = len - r.left;
    } while (ret == 0 && c->state != CV_SOCKS5_CLIENT_STATE_DONE);
    *ret_out_len = w.len;
    CV_ASSERT(w.err == 0); /* 'out' has room for whatever the states above can write at once */
    if (ret != 0 && ret != CV_E_MORE) {
        c->state = CV_SOCKS5_CLIENT_STATE_FAILED;
        *ret_out_len = 0;
    }
    return ret;
}

int cv_socks5_rep_err(uint8_t rep)
{
    switch (rep) {
    case CV_SOCKS5_REP_OK:
        return 0;
    case CV_SOCKS5_REP_POLICY:
        return CV_E_POLICY;
    case CV_SOCKS5_REP_NETWORK:
        return -ENETUNREACH;
    case CV_SOCKS5_REP_HOST:
        return -EHOSTUNREACH;
    case CV_SOCKS5_REP_REFUSED:
        return -ECONNREFUSED;
    case CV_SOCKS5_REP_TTL:
        return -ETIMEDOUT;
    case CV_SOCKS5_REP_COMMAND:
        return CV_E_UNSUPPORTED;
    case CV_SOCKS5_REP_ADDRESS:
        return -EAFNOSUPPORT;
    default:
        return CV_E_UNAVAILABLE;
    }
}
