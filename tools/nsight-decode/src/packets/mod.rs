// SPDX-License-Identifier: GPL-2.0-only
//! Intel PT packets: what each one is, and where decoding of a trace can begin.

pub mod index;
pub mod kinds;
