// SPDX-License-Identifier: GPL-2.0-only
//! Behind an error: where decoding goes on.

use super::errors::perf_error;
use super::{header, Code, Kind, Place, Scanner, State, What};
use crate::packets::index::PSB;

impl State<'_, '_> {
    /// Where to take up decoding again, which had begun at `at`: a PSB whose packets were not used.
    pub(super) fn next_psb(&self, at: usize) -> Option<usize> {
        let trace = self.decoder.trace();
        let unused = |&&psb: &&usize| {
            let branch = psb + header(&trace[psb - self.base..]).branch.max(PSB.len());
            branch >= self.offset
        };
        self.psbs.iter().find(|&&psb| psb > at && psb >= self.scanned && unused(&&psb)).copied()
    }

    /// Behind an error: the next place before `until` whose address packets tell. At `patched` a PSB+ says so.
    pub(super) fn next_address(&mut self, code: i32, until: usize) -> Option<Place> {
        // Where packets are damaged, the next ones are not found.
        if !matches!(perf_error(code), 5 | 6 | 10) {
            return None;
        }
        let last = self.psbs.partition_point(|&psb| psb <= self.offset).checked_sub(1)?;
        let psb = self.psbs[last] - self.base;
        if psb > self.scanner.at {
            self.scanner = Scanner::new(psb, self.rates);
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

    /// Decoding goes on at a place that no PSB told.
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
