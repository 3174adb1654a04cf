/* SPDX-License-Identifier: GPL-2.0-only */
/* Before anything is shown: with scripts the pictures are for print only. */
document.documentElement.classList.add("script");
try {
	const chosen = localStorage.getItem("nsight-scheme");
	if (chosen) document.documentElement.dataset.scheme = chosen;
} catch { /* a browser that keeps nothing of files */ }
