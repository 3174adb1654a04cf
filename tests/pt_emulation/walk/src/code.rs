// SPDX-License-Identifier: GPL-2.0-only
//! The code that was executed, by address space.

use std::collections::{BTreeMap, HashSet};

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

/// Bytes of one page that were executed; the last ones where they changed.
struct Page {
    bytes: Box<[u8; PAGE as usize]>,
    known: Box<[bool; PAGE as usize]>,
}

impl Default for Page {
    fn default() -> Self {
        Self { bytes: Box::new([0; PAGE as usize]), known: Box::new([false; PAGE as usize]) }
    }
}

#[derive(Default)]
pub struct Code {
    pages: BTreeMap<(u64, u64), Page>,
    seen: HashSet<(u32, u64, u64)>,
    /// Bytes that were executed with more than one value.
    pub n_changed: u64,
}

impl Code {
    /// Block `id` was executed at `ip`.
    pub fn add(&mut self, id: u32, ip: u64, cr3: u64, bytes: &[u8]) {
        let space = space(ip, cr3);
        if !self.seen.insert((id, ip, space)) {
            return;
        }
        for (address, &byte) in (ip..).zip(bytes) {
            let page = self.pages.entry((space, address & !(PAGE - 1))).or_default();
            let at = (address % PAGE) as usize;
            self.n_changed += u64::from(page.known[at] && page.bytes[at] != byte);
            page.bytes[at] = byte;
            page.known[at] = true;
        }
    }

    /// Copies executed bytes from `ip` on; returns how many there are without a hole.
    pub fn read(&self, ip: u64, cr3: u64, to: &mut [u8]) -> usize {
        let space = space(ip, cr3);
        let mut page: Option<(u64, &Page)> = None;
        for (n, byte) in to.iter_mut().enumerate() {
            let address = ip.wrapping_add(n as u64);
            let base = address & !(PAGE - 1);
            if page.map(|p| p.0) != Some(base) {
                page = self.pages.get(&(space, base)).map(|p| (base, p));
            }
            let at = (address % PAGE) as usize;
            match page {
                Some((_, p)) if p.known[at] => *byte = p.bytes[at],
                _ => return n,
            }
        }
        to.len()
    }

    /// (space, page address, bytes executed) in order; space 0 is the kernel's.
    pub fn pages(&self) -> impl Iterator<Item = (u64, u64, usize)> + '_ {
        self.pages.iter().map(|(&(space, page), p)| (space, page, p.known.iter().filter(|&&k| k).count()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_their_own_code_and_share_the_kernels() {
        let mut code = Code::default();
        code.add(0, 0x1ffe, 0x5000, &[1, 2, 3]); // over a page's end
        code.add(1, 0x1ffe, 0x8000, &[7]);
        code.add(2, u64::MAX - 0xfff, 0x5000, &[9]);
        let mut bytes = [0; 4];
        assert_eq!(code.read(0x1ffe, 0x5000, &mut bytes), 3);
        assert_eq!(bytes[..3], [1, 2, 3]);
        // page-table isolation: same process, CR3's bits 0-12 differ
        assert_eq!(code.read(0x2000, 0x5803 | 0x1000, &mut bytes), 1);
        assert_eq!(code.read(0x1ffe, 0x8000, &mut bytes), 1);
        assert_eq!(code.read(u64::MAX - 0xfff, 0x8000, &mut bytes), 1);
        assert_eq!(code.read(0x9000, 0x5000, &mut bytes), 0);
        let pages: Vec<_> = code.pages().collect();
        assert_eq!(pages[0], (0, u64::MAX - 0xfff, 1));
        assert_eq!(pages[1..3], [(0x4000, 0x1000, 2), (0x4000, 0x2000, 1)]);
    }

    #[test]
    fn code_that_changed_is_known_as_it_was_last() {
        let mut code = Code::default();
        code.add(0, 0x1000, 0, &[1, 2]);
        code.add(1, 0x1000, 0, &[1, 3]);
        let mut bytes = [0; 2];
        code.read(0x1000, 0, &mut bytes);
        assert_eq!((bytes, code.n_changed), ([1, 3], 1));
    }
}
