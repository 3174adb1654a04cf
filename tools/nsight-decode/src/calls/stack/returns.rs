// SPDX-License-Identifier: GPL-2.0-only
//! Where a return leads: which calls end, including by a tail call or a signal.

use std::ops::Range;

use super::super::row::{Kind, Known};
use super::super::texts::Function;
use super::frames::{context, outermost};
use super::{is_kernel, Core, Entry, Frame};

const SYSCALL_LEN: u64 = 2;
/// A function is searched for only among this many innermost frames.
const MOST_LEFT: usize = 1024;

impl Core {
    pub(super) fn ret(&mut self, to: u64, function: Function, time: u64) {
        let context = context(&self.stack);
        if let Some(at) = self.stack[context..].iter().rposition(|f| f.entry.returns_to(to)) {
            return self.pop_to(context + at, time);
        }
        // The return of a retpoline is a jump: the caller of the thunk called the thunk's target.
        let mut entry = None;
        while self.stack.len() > context && self.stack.last().is_some_and(|f| f.function.is_thunk) {
            entry = self.pop(time, Known::Measured).map(|f| f.entry);
        }
        if let Some(entry) = entry {
            self.before = function.symbol;
            return self.enter(entry, Kind::Function, function, to, time, Known::Measured);
        }
        // A signal handler returns to code that the kernel chose; that code returns to the kernel.
        let signal = self.stack[context..].iter().rposition(|f| matches!(f.entry, Entry::Signal(_)));
        if let Some(at) = signal.map(|at| at + context) {
            let entry = self.stack[at].entry;
            self.pop_to(at, time);
            return self.enter(entry, Kind::Function, function, to, time, Known::Measured);
        }
        // A C++ exception returns into an outer function, but not to the return address of a call.
        let below = context..self.stack.len().max(context + 1) - 1;
        if let Some(at) = self.innermost(below, function) {
            return self.pop_to(at + 1, time);
        }
        self.pop_to(context, time);
        self.find(function, to, time);
    }

    /// The innermost of `frames` that belongs to a function.
    fn innermost(&self, frames: Range<usize>, function: Function) -> Option<usize> {
        let same = |f: &Frame| f.function.is_with(&function);
        let first = frames.start.max(frames.end.saturating_sub(MOST_LEFT));
        self.stack[first..frames.end]
            .iter()
            .rposition(same)
            .filter(|_| function.is_known)
            .map(|at| first + at)
    }

    /// `from` runs. A jump into the middle of a function has no edge: if `from` is not the innermost function, longjmp
    /// left the functions that it had called.
    pub(super) fn come_back(&mut self, from: Function, time: u64) {
        if self.stack.last().is_none_or(|top| top.function.is_with(&from)) {
            return;
        }
        if let Some(at) = self.innermost(context(&self.stack)..self.stack.len(), from) {
            while self.stack.len() > at + 1 {
                self.pop(time, Known::Inferred);
            }
        }
    }

    pub(super) fn tail_call(&mut self, to: Function, address: u64, time: u64) {
        match self.stack.last() {
            Some(frame) if !frame.entry.is_boundary() && !to.is_return_thunk => {
                let entry = frame.entry;
                self.pop(time, Known::Measured);
                self.enter(entry, Kind::Function, to, address, time, Known::Measured);
            }
            _ => {}
        }
    }

    pub(super) fn back_to_kernel(&mut self, to: u64, function: Function, time: u64) {
        let interrupt = self.stack.iter().rposition(|f| matches!(f.entry, Entry::Interrupt(_)));
        self.pop_to(interrupt.unwrap_or(0), time);
        if self.stack.is_empty() {
            self.find(function, to, time);
        }
    }

    /// The system call that executes another program returns to the new program.
    pub(super) fn exec(&mut self) {
        let syscall = |f: &&mut Frame| matches!(f.entry, Entry::Syscall(_));
        if let Some(frame) = self.stack.iter_mut().rev().find(syscall) {
            frame.entry = Entry::Exec;
        }
    }

    /// None of the earlier calls continues.
    fn begin_program(&mut self, to: u64, function: Function, time: u64) {
        self.pop_to(0, time);
        self.enter(Entry::Unknown, Kind::Function, function, to, time, Known::Measured);
    }

    pub(super) fn back_to_user(&mut self, to: u64, function: Function, time: u64) {
        let first = outermost(&self.stack);
        let kernel = || self.stack.iter().position(|f| is_kernel(f.address));
        let left = first.or_else(kernel).unwrap_or(self.stack.len());
        let resumes = match first.map(|at| self.stack[at].entry) {
            Some(Entry::Exec) => {
                self.pop_to(left, time);
                return self.begin_program(to, function, time);
            }
            Some(Entry::Syscall(from)) => Some(from.wrapping_add(SYSCALL_LEN)),
            Some(Entry::Interrupt(at)) => Some(at),
            _ => None,
        };
        self.pop_to(left, time);
        // A return from a signal handler by sigreturn: it does not return to the place of the system call.
        let interrupted = |f: &Frame| f.entry == Entry::Signal(to);
        if resumes != Some(to) {
            if let Some(at) = self.stack.iter().rposition(interrupted) {
                return self.pop_to(at, time);
            }
        }
        let goes_on = |f: &Frame| f.function.symbol == function.symbol;
        match (resumes, self.stack.last()) {
            (Some(resumes), Some(frame)) if resumes != to && !goes_on(frame) => {
                if function.is_program_start {
                    self.begin_program(to, function, time);
                } else {
                    let entry = Entry::Signal(resumes);
                    self.enter(entry, Kind::Function, function, to, time, Known::Measured);
                }
            }
            (_, None) => self.find(function, to, time),
            _ => {}
        }
    }
}
