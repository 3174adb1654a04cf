// SPDX-License-Identifier: GPL-2.0-only
//! After an error: where decoding resumes.

use super::errors::perf_error;
use super::{header, Code, Kind, Place, Scanner, State, What};
use crate::packets::index::PSB;
use crate::pt::trace::Packets;

impl State<'_, '_> {
    /// The PSB at which decoding can resume if it had begun at `at`: one whose packets were not used.
    pub(super) fn next_psb(&mut self, at: usize) -> Option<usize> {
        let Self { decoder, psbs, base, offset, scanned, .. } = self;
        let mut is_unused = |psb: usize| {
            let branch = psb + header(decoder.trace().at(psb - *base)).branch.max(PSB.len());
            branch >= *offset
        };
        psbs.iter().find(|&&psb| psb > at && psb >= *scanned && is_unused(psb)).copied()
    }

    /// After an error: the next place before `until` whose address is in the packets. Writes a PSB+ for it at
    /// `patched`.
    pub(super) fn next_address(&mut self, code: i32, until: usize) -> Option<Place> {
        // If packets are damaged, the following ones cannot be found.
        if !matches!(perf_error(code), 5 | 6 | 10) {
            return None;
        }
        let last = self.psbs.partition_point(|&psb| psb <= self.offset).checked_sub(1)?;
        let psb = self.psbs[last] - self.base;
        if psb > self.scanner.at {
            self.scanner = Scanner::new(psb, self.rates, self.bounds.clone());
        }
        let from = self.offset.max(self.scanned) - self.base;
        let least = self.replay.tsc;
        while let Some(place) = self.scanner.next(self.decoder.trace(), from, until - self.base) {
            let plus = self.scanner.psb_plus(place, least);
            if let Some(at) = place.offset.checked_sub(plus.len()) {
                self.decoder.patch(at, &plus);
                (self.patched, self.scanned) = (self.base + at, self.base + place.offset);
                return Some(place);
            }
        }
        None
    }

    /// Decoding resumes at a place that has no PSB.
    pub(super) fn begin_at(&mut self, place: Place) {
        self.in_guest = false;
        if place.overflow {
            self.push(What::Event(Code::Overflow), 0, 0);
            self.untold = Some(self.output.items.len());
        }
        if place.enable {
            self.entry = false;
            self.function = self.walker.images.symbol(&self.image, place.ip);
            let to_sym = self.function.id;
            self.push_edge(What::Edge(Kind::TraceBegin), 0, place.ip, 0, to_sym);
        }
    }
}
