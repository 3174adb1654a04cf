/* SPDX-License-Identifier: GPL-2.0-only */
/* Before anything is shown: with scripts the pictures are for print only. */
document.documentElement.classList.add("script");
