// SPDX-License-Identifier: GPL-2.0-only
//! Packets of Intel PT: what each is, and where a trace of them can be entered.

pub mod index;
pub mod kinds;
