/* SPDX-License-Identifier: GPL-2.0-only */
/* CLOCK_REALTIME against CLOCK_MONOTONIC, and who sets it. */
#ifndef NSIGHT_MONITOR_CLOCKS_H
#define NSIGHT_MONITOR_CLOCKS_H

#include <stdint.h>

uint64_t clock_ns(int clock);
/* CLOCK_REALTIME less CLOCK_MONOTONIC: both read around each other, the closest of some times. */
int64_t clock_realtime_offset(void);
/*
 * A descriptor that is ready when CLOCK_REALTIME was set, -1 where the kernel gives none; and what
 * makes it wait for the next time.
 */
int clock_watch(void);
void clock_watch_again(int fd);
/* A socket that asks for receive stamps, which the kernel then gives to every packet; -1: refused.
 */
int clock_receive_stamps(void);

#endif
