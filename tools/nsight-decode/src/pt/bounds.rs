// SPDX-License-Identifier: GPL-2.0-only
//! Which TSC values can be right. Time goes forward: a TSC packet between two PSBs is not before the first one's TSC, nor
//! after the second one's.

use std::rc::Rc;

use crate::packets::index::Psb;

/// TSC has so many bits in packets.
const BITS: u64 = (1 << 56) - 1;
/// Cores differ by some ticks, and a thread may move between them.
const SLACK: u64 = 1 << 16;

/// From a PSB on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    least: u64,
    most: u64,
}

impl Bounds {
    pub const NONE: Self = Self { least: 0, most: u64::MAX };

    fn new(psb: &Psb) -> Self {
        let (least, most) = (psb.least & BITS, if psb.most == u64::MAX { psb.most } else { psb.most & BITS });
        // When the 56 bits wrap, nothing is known.
        if most < least {
            return Self::NONE;
        }
        Self { least, most }
    }

    pub fn contain(self, tsc: u64) -> bool {
        self.least <= tsc.saturating_add(SLACK) && tsc <= self.most.saturating_add(SLACK)
    }
}

/// The bounds of a slice, by offsets in its trace.
#[derive(Clone, Debug, Default)]
pub struct All {
    psbs: Rc<[(usize, Bounds)]>,
    /// Where the next slice begins.
    pub end: usize,
}

impl All {
    pub fn new(psbs: &[Psb], begin: usize, end: usize) -> Self {
        let psbs = psbs.iter().map(|psb| (psb.offset - begin, Bounds::new(psb))).collect();
        Self { psbs, end: end - begin }
    }

    pub fn at(&self, offset: usize) -> Bounds {
        let at = self.psbs.partition_point(|(psb, _)| *psb <= offset);
        at.checked_sub(1).map_or(Bounds::NONE, |at| self.psbs[at].1)
    }
}
