// SPDX-License-Identifier: GPL-2.0-only
//! The branch that execution goes on behind.

use crate::edges::Kind;

/// A branch whose target is the next block's begin. It is in the function that `State` says runs.
#[derive(Clone, Copy)]
pub struct Pending {
    pub from: u64,
    /// None: a jump, which may be a tail call.
    pub kind: Option<Kind>,
    /// Packets tell of it, or it needs none.
    pub executed: bool,
    pub time: u64,
    pub offset: usize,
}
