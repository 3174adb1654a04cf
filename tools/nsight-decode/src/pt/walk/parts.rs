// SPDX-License-Identifier: GPL-2.0-only
//! Hands on what was decoded, part by part.

use super::slice::{Output, OVERLAP_ITEMS, OVERLAP_PACKETS, PART, ROOM};
use super::State;
use crate::error::Result;

impl State<'_, '_> {
    /// Hands on what was decoded so far, if it is enough for a part. Items that the next slice may find, too, stay
    /// together in the last part.
    pub(super) fn hand_on(&mut self) -> Result<()> {
        self.hand_on_up_to(self.next)
    }

    /// After a mark whose packet ends at an offset. If there are many without a branch between, they wait no longer for its
    /// time: execution is said to have reached the last one.
    pub(super) fn hand_on_marks(&mut self, offset: usize) -> Result<()> {
        if self.marks.len() >= PART {
            self.go_on(self.marks[self.marks.len() - 1].time)?;
            if let Some(pending) = &mut self.pending {
                pending.time = self.now;
            }
        }
        if self.marks.is_empty() {
            // The next branch may belong to the next slice, but all that ran before a packet of this one does not.
            return self.hand_on_up_to(offset);
        }
        Ok(())
    }

    /// `offset`: where a packet ends before which all of the items ran.
    fn hand_on_up_to(&mut self, offset: usize) -> Result<()> {
        if self.output.items.len() < PART || offset > self.end || self.is_untold() {
            return Ok(());
        }
        self.output.until = self.pending.as_ref().map_or(self.now, |p| p.time.min(self.now));
        self.output.goes_on = true;
        let items = self.walker.spare.get(ROOM);
        let part = std::mem::replace(&mut self.output, Output { items, ..Output::default() });
        (self.emit)(part)
    }

    /// Whether enough of the next slice was decoded to join both.
    pub(super) fn overlaps_enough(&self) -> bool {
        if self.offset - self.end > OVERLAP_PACKETS {
            return true;
        }
        let items = &self.output.items;
        items.len() >= OVERLAP_ITEMS && items[items.len() - OVERLAP_ITEMS].offset > self.end
    }

    /// Whether items still wait for the time at which an overflow ended. If no packet tells it for long, they keep the
    /// time at which it began.
    fn is_untold(&mut self) -> bool {
        self.untold = self.untold.filter(|&at| self.output.items.len() - at < PART);
        self.untold.is_some()
    }
}
