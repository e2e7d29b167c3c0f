/* What stands between the data channel and an IP packet: compression framing (nothing is ever
 * compressed by us), fragment headers, pings and OCC messages. */
#pragma once

#include "common/defs.h"
#include "tunnel/profile.h"

#define CV_FRAME_HEAD_MAX   8    /* most bytes that are put before a packet */
#define CV_FRAME_PACKET_MAX 2048 /* longest packet that is put together or decompressed */
#define CV_FRAME_PARTIALS   4

enum cv_frame_kind {
    CV_FRAME_NOTHING = 0, /* of no use, or not yet whole */
    CV_FRAME_PACKET,      /* an IP packet */
    CV_FRAME_PING,
    CV_FRAME_EXIT, /* the peer goes away */
    CV_FRAME_OCC,  /* another OCC message */
    CV_FRAME_BAD,  /* malformed, or compressed in a way that is not known */
};

extern const uint8_t cv_frame_ping[16];
/* OCC_EXIT: the last word to a peer that does not know how to be told otherwise. */
extern const uint8_t cv_frame_exit[17];

struct cv_frame_partial {
    bool used;
    uint8_t seq;
    uint32_t have; /* bit map of fragments */
    uint32_t last; /* number of the last one; UINT32_MAX = not seen */
    uint32_t unit; /* length of all but the last; 0 = not known */
    uint32_t last_len;
    uint64_t stamp;
    uint8_t data[CV_FRAME_PACKET_MAX];
};

struct cv_frame {
    enum cv_profile_comp comp;
    bool fragment;
    uint8_t next_seq;
    uint64_t clock;
    struct cv_frame_partial partial[CV_FRAME_PARTIALS];
    uint8_t whole[CV_FRAME_PACKET_MAX]; /* decompressed */
};

void cv_frame_init(struct cv_frame *f, enum cv_profile_comp comp, bool fragment);
/* The bytes before a packet whose first byte is 'first'. With CV_COMP_STUB the first byte itself
 * moves to the end: *ret_swap, and the packet's bytes from its second on follow the head. Returns
 * the length of the head. */
size_t cv_frame_head(const struct cv_frame *f, uint8_t first, uint8_t head[CV_FRAME_HEAD_MAX],
                     bool *ret_swap);
/* The header of one of several fragments: 'number' counts from 0; 'unit' is the length of all but
 * the last, a multiple of 4. */
void cv_frame_fragment(const struct cv_frame *f, unsigned number, bool last, uint32_t unit,
                       uint8_t head[4]);
/* What is in a decrypted payload; *data and *len become the packet's (in place or in 'f', until the
 * next call). */
enum cv_frame_kind cv_frame_open(struct cv_frame *f, uint8_t **data, size_t *len);
