/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef NSIGHT_KEYED_HASH_H
#define NSIGHT_KEYED_HASH_H

#include <stddef.h>
#include <stdint.h>

/*
 * SipHash-1-3 (Aumasson and Bernstein, 2012) with a key of this process. The author of a capture
 * does not know the key, so names in it cannot be chosen to collide in a hash table.
 */
uint64_t keyed_hash(const void *data, size_t len);

#endif
