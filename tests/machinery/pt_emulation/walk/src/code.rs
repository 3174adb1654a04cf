// SPDX-License-Identifier: GPL-2.0-only
//! The executed code, by address space.

use std::collections::{BTreeMap, HashSet};

use crate::time::{Clock, Place};

pub const PAGE: u64 = 4096;

/// An address space: 0 for the kernel's half, else CR3 without the bits that a kernel with
/// page-table isolation and address-space identifiers varies within one process.
pub fn space(ip: u64, cr3: u64) -> u64 {
    if pt_events::is_kernel(ip) {
        0
    } else {
        cr3 & !0x1fff
    }
}

/// Executed bytes of one page, for the time during which they did not change.
#[derive(Clone)]
struct Page {
    /// The number of the code change with which it begins; 0 is the log's beginning.
    since: usize,
    bytes: Box<[u8; PAGE as usize]>,
    known: Box<[bool; PAGE as usize]>,
}

impl Default for Page {
    fn default() -> Self {
        Self { since: 0, bytes: Box::new([0; PAGE as usize]), known: Box::new([false; PAGE as usize]) }
    }
}

#[derive(Default)]
pub struct Code {
    /// By address space and address: the successive versions of the page.
    pages: BTreeMap<(u64, u64), Vec<Page>>,
    /// Blocks that are in `pages`: number, address, space, and number of code changes before.
    seen: HashSet<(u32, u64, u64, usize)>,
    /// When code changed: the kernel patches its code, and page tables of ended processes are used again.
    changes: Vec<Place>,
    /// The same times in TSC, after `date`. The first is the beginning.
    dates: Vec<u64>,
    /// Bytes that were executed with more than one value.
    pub n_changed: u64,
}

impl Code {
    /// Block `id` was executed at `ip`, from `place` on.
    pub fn add(&mut self, id: u32, ip: u64, cr3: u64, bytes: &[u8], place: Place) {
        let space = space(ip, cr3);
        if !self.seen.insert((id, ip, space, self.changes.len())) {
            return;
        }
        let mut changed = false;
        for (address, &byte) in (ip..).zip(bytes) {
            let pages =
                self.pages.entry((space, address & !(PAGE - 1))).or_insert_with(|| vec![Page::default()]);
            let at = (address % PAGE) as usize;
            let Some(last) = pages.last_mut() else { continue };
            if !last.known[at] || last.bytes[at] == byte {
                last.bytes[at] = byte;
                last.known[at] = true;
                continue;
            }
            self.n_changed += 1;
            if !changed {
                changed = true;
                self.changes.push(place);
            }
            if last.since == self.changes.len() {
                last.bytes[at] = byte;
            } else {
                let mut page = last.clone();
                page.since = self.changes.len();
                page.bytes[at] = byte;
                pages.push(page);
            }
        }
    }

    pub(crate) fn date(&mut self, clock: &Clock) {
        let mut times = clock.times();
        self.dates = vec![0];
        self.dates.extend(self.changes.iter().map(|&place| times.tsc(place).unwrap_or(0)));
    }

    /// Copies executed bytes from `ip` on, in their last version; returns how many there are without a hole.
    pub fn read(&self, ip: u64, cr3: u64, to: &mut [u8]) -> usize {
        let space = space(ip, cr3);
        let mut page: Option<(u64, &Page)> = None;
        for (n, byte) in to.iter_mut().enumerate() {
            let address = ip.wrapping_add(n as u64);
            let base = address & !(PAGE - 1);
            if page.map(|p| p.0) != Some(base) {
                page = self.pages.get(&(space, base)).and_then(|p| Some((base, p.last()?)));
            }
            let at = (address % PAGE) as usize;
            match page {
                Some((_, p)) if p.known[at] => *byte = p.bytes[at],
                _ => return n,
            }
        }
        to.len()
    }

    /// Like `read`, in any address space that has the address.
    pub fn read_any(&self, ip: u64, to: &mut [u8]) -> usize {
        let page = ip & !(PAGE - 1);
        let spaces = self.pages.keys().filter(|key| key.1 == page).map(|key| key.0);
        let mut best = 0;
        for space in spaces.collect::<Vec<_>>() {
            best = best.max(self.read(ip, space, to));
        }
        best
    }

    /// Executed bytes without holes within a page: (space, address, length), in order.
    pub fn runs(&self) -> Vec<(u64, u64, usize)> {
        let mut runs = Vec::new();
        for (&(space, page), versions) in &self.pages {
            let known = |at: usize| versions.iter().any(|v| v.known[at]);
            let mut at = 0;
            while at < PAGE as usize {
                let start = at;
                while at < PAGE as usize && known(at) {
                    at += 1;
                }
                if at > start {
                    runs.push((space, page + start as u64, at - start));
                }
                at += 1;
            }
        }
        runs
    }

    /// Every version of every page: (space, address, TSC at which it begins, bytes), in this order. Bytes that were not
    /// executed are 0.
    pub fn versions(&self) -> impl Iterator<Item = (u64, u64, u64, &[u8])> + '_ {
        self.pages.iter().flat_map(move |(&(space, address), pages)| {
            let tsc = |page: &Page| self.dates.get(page.since).copied().unwrap_or(0);
            pages.iter().map(move |page| (space, address, tsc(page), &page.bytes[..]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGINNING: Place = Place { interval: 0, count: 0 };

    #[test]
    fn processes_have_their_own_code_and_share_the_kernels() {
        let mut code = Code::default();
        code.add(0, 0x1ffe, 0x5000, &[1, 2, 3], BEGINNING); // over a page's end
        code.add(1, 0x1ffe, 0x8000, &[7], BEGINNING);
        code.add(2, u64::MAX - 0xfff, 0x5000, &[9], BEGINNING);
        let mut bytes = [0; 4];
        assert_eq!(code.read(0x1ffe, 0x5000, &mut bytes), 3);
        assert_eq!(bytes[..3], [1, 2, 3]);
        // page-table isolation: same process, CR3's bits 0-12 differ
        assert_eq!(code.read(0x2000, 0x5803 | 0x1000, &mut bytes), 1);
        assert_eq!(code.read(0x1ffe, 0x8000, &mut bytes), 1);
        assert_eq!(code.read(u64::MAX - 0xfff, 0x8000, &mut bytes), 1);
        assert_eq!(code.read(0x9000, 0x5000, &mut bytes), 0);
        // space 0 is the kernel's; a run ends with its page
        let runs = code.runs();
        assert_eq!(runs[0], (0, u64::MAX - 0xfff, 1));
        assert_eq!(runs[1..3], [(0x4000, 0x1ffe, 2), (0x4000, 0x2000, 1)]);
    }

    #[test]
    fn code_that_changed_is_known_as_it_was_last() {
        let mut code = Code::default();
        code.add(0, 0x1000, 0, &[1, 2], BEGINNING);
        code.add(1, 0x1000, 0, &[1, 3], Place { interval: 0, count: 7 });
        code.add(0, 0x1000, 0, &[1, 2], Place { interval: 0, count: 9 }); // and back again
        let mut bytes = [0; 2];
        code.read(0x1000, 0, &mut bytes);
        assert_eq!((bytes, code.n_changed), ([1, 2], 2));
        let mut clock = Clock::default();
        clock.reading(100);
        code.date(&clock);
        let versions: Vec<_> = code.versions().map(|(_, _, tsc, bytes)| (tsc, bytes[1])).collect();
        assert_eq!(versions, [(0, 2), (107, 3), (109, 2)]);
    }
}
