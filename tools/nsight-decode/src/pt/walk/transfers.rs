// SPDX-License-Identifier: GPL-2.0-only
//! Transfers out of a function: calls, returns and tail calls, including those that switch threads.

use super::super::item::{Item, What};
use super::{Pending, State};
use crate::code::Found;
use crate::edges::Kind;
use crate::error::Result;
use crate::libipt::Block;

impl State<'_, '_> {
    /// A jump out of a function: a tail call if it leads to the start of another function.
    pub(super) fn jump(
        &mut self,
        from: u64,
        to: u64,
        function: Found,
        time: u64,
        offset: usize,
    ) -> Result<()> {
        let target = self.walker.images.symbol(&self.image, to);
        self.function = target;
        if target.start == to && target.id != function.id && function.id != 0 {
            let what = What::Edge(Kind::TailCall);
            let (from_sym, to_sym) = (function.id, target.id);
            self.output.items.push(Item { time, from, to, from_sym, to_sym, what, offset });
            if Some(to) == self.walker.code.kernel.switch_ip && self.cursor.switch_to(self.now) {
                self.task();
            }
        }
        Ok(())
    }

    /// The block left the function in which it began, by direct jumps or by running over its end.
    pub(super) fn leave_within(&mut self, block: &Block) -> Result<()> {
        for &(from, to) in self.walker.insns.jumps(block).iter() {
            if !(self.function.start..self.function.end).contains(&to) {
                self.jump(from, to, self.function, self.now, self.next)?;
            }
        }
        if !(self.function.start..self.function.end).contains(&block.end_ip) {
            self.function = self.walker.images.symbol(&self.image, block.end_ip);
        }
        Ok(())
    }

    /// Execution is at `ip`: now, the target of the pending branch is known.
    pub(super) fn arrive(&mut self, ip: u64) -> Result<()> {
        if self.entry {
            self.entry = false;
            self.function = self.walker.images.symbol(&self.image, ip);
            let to_sym = self.function.id;
            self.push_edge(What::Entry, 0, ip, 0, to_sym);
        }
        // By reference: a copy of the whole would have to wait until each field is written.
        let Some(&Pending { from, kind, time, offset, .. }) = self.pending.as_ref() else { return Ok(()) };
        self.pending = None;
        let Some(kind) = kind else {
            if !(self.function.start..self.function.end).contains(&ip) {
                self.jump(from, ip, self.function, time, offset)?;
            }
            return Ok(());
        };
        let from_sym = self.function.id;
        self.function = self.walker.images.symbol(&self.image, ip);
        let (to_sym, what) = (self.function.id, What::Edge(kind));
        self.output.items.push(Item { time, from, to: ip, from_sym, to_sym, what, offset });
        if Some(ip) == self.walker.code.kernel.switch_ip
            && kind == Kind::Call
            && self.cursor.switch_to(self.now)
        {
            self.task();
        }
        Ok(())
    }
}
