/* SPDX-License-Identifier: GPL-2.0-only */
/* CLOCK_REALTIME against CLOCK_MONOTONIC, and changes of the former. */
#ifndef NSIGHT_MONITOR_CLOCKS_H
#define NSIGHT_MONITOR_CLOCKS_H

#include <stdint.h>

/* CLOCK_MONOTONIC is that of the programs, also in a time namespace. */
uint64_t clock_ns(int clock);
/* CLOCK_REALTIME minus CLOCK_MONOTONIC: one is read around the other; the closest of several
 * readings. */
int64_t clock_realtime_offset(void);
/*
 * A descriptor that is ready when CLOCK_REALTIME was set, -1 if the kernel has none; and the
 * function that makes it wait again.
 */
int clock_watch(void);
void clock_watch_again(int fd);
/* A socket that requests receive timestamps, which the kernel then gives to every packet; -1:
 * refused. Returns when packets have them. */
int clock_receive_stamps(void);

#endif
