/* SPDX-License-Identifier: GPL-2.0-only */
/* Settings as text, at the start and while running. */
#ifndef NSIGHT_CONTROL_H
#define NSIGHT_CONTROL_H

#include "../../bpf/capsule.h"

#include <stdbool.h>

/*
 * Apply the words KEY=VALUE. False: one is not valid, *wrong is its name, and nothing was changed.
 * The text is modified.
 */
bool control_set(struct nsc_config *config, char *text, const char **wrong);
/* Listen at DIR/control, a datagram socket. */
int control_open(const char *dir);
void control_close(const char *dir);

#endif
