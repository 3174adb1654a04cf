// SPDX-License-Identifier: GPL-2.0-only
//! Decodes Intel PT packets to edges.

pub mod bounds;
pub mod clock;
pub mod decoder;
pub mod item;
pub mod mark;
pub mod replay;
pub mod resync;
#[cfg(test)]
mod return_stack;
pub mod stitch;
pub mod switches;
pub mod tail_calls;
pub mod trace;
pub mod walk;
