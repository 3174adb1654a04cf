/* SPDX-License-Identifier: GPL-2.0-only */
/* Guards: at devices that lead out and are no points, and at every device that comes later, until
 * nsight-capsule has looked at it. */
#ifndef NSIGHT_GUARDS_H
#define NSIGHT_GUARDS_H

#include "attach.h"

#define MOST_GUARDS 4096

/*
 * Watch all namespaces from now on. guarding: capsules may not leave this kernel. Returns the
 * descriptor to poll for guards_changed().
 */
int guards_watch(uint16_t session, bool guarding);
/* Guard the devices that lead out. */
void guards_attach(const struct device *devices, int n);
/*
 * Handle one change: guard a device that came, at once; or note an address of the points'
 * namespaces. False: there are no more. Attaching may take some ms.
 */
bool guards_changed(struct device *points, int n);
/* Devices that nsight-capsule must look at, as JSON. */
void guards_print(char *to, uint32_t bytes);
/* nsight-capsule has looked at it: packets leave there. False: it does not exist any more.
 * *exposed: packets may have left before the guard. */
bool guards_keep(const struct device *device, bool *exposed);
/* Packets do not leave there, or it is a point now. */
void guards_remove(const struct device *device);

#endif
