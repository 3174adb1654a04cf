// SPDX-License-Identifier: GPL-2.0-only
//! The last branch, before its target is known.

use crate::edges::Kind;

/// A branch whose target is the begin of the next block. It belongs to the function in `State`.
#[derive(Clone, Copy)]
pub struct Pending {
    pub from: u64,
    /// None: a jump, which may be a tail call.
    pub kind: Option<Kind>,
    /// Packets confirm it, or it needs no packet.
    pub executed: bool,
    pub time: u64,
    pub offset: usize,
}
