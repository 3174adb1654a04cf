// SPDX-License-Identifier: GPL-2.0-only
//! An open call, and the system call or interrupt that it belongs to.

use super::super::row::Kind;
use super::super::texts::Function;

/// Maximum length of a call instruction, bytes.
const LONGEST_CALL: u64 = 15;

/// How a frame was entered; this also determines where it returns to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// By the call instruction at an address.
    Call(u64),
    /// Before it was seen.
    Unknown,
    Syscall(u64),
    /// By a system call that executed another program.
    Exec,
    Interrupt(u64),
    /// A signal handler; the interrupted code resumes at this address.
    Signal(u64),
}

impl Entry {
    pub fn is_boundary(self) -> bool {
        matches!(self, Self::Syscall(_) | Self::Exec | Self::Interrupt(_))
    }

    pub fn returns_to(self, to: u64) -> bool {
        matches!(self, Self::Call(from) if to > from && to - from <= LONGEST_CALL)
    }
}

/// An open call; it has no row while its thread is off CPU.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub row: i64,
    /// Index of the first frame that belongs to the enclosing system call or interrupt. Searching for it at each return
    /// would take time in proportion to the depth of the calls.
    pub context: usize,
    pub entry: Entry,
    pub kind: Kind,
    pub function: Function,
    pub address: u64,
}

/// Index of the first frame that belongs to the innermost system call or interrupt.
pub fn context(stack: &[Frame]) -> usize {
    match stack.last() {
        Some(frame) if frame.entry.is_boundary() => stack.len(),
        Some(frame) => frame.context,
        None => 0,
    }
}

/// Index of the frame of the outermost system call or interrupt.
pub fn outermost(stack: &[Frame]) -> Option<usize> {
    let around = |&at: &usize| stack[at].context.checked_sub(1);
    std::iter::successors(context(stack).checked_sub(1), around).last()
}
