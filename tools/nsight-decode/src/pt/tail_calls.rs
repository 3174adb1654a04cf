// SPDX-License-Identifier: GPL-2.0-only
//! Instructions of a block: direct jumps that leave a function, and what a core may wait at.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use super::ffi::Block;
use crate::code::Sections;
use crate::insn::{self, Insn, Stall, Transfer};

/// Entries of a cache; beyond, it is made anew.
const MAX_CACHED: usize = 1 << 16;

/// Direct jumps within a block: from, to.
pub type Jumps = Rc<[(u64, u64)]>;

/// A multiplication for each word. The caches are asked for a good part of all blocks, and are of bounded
/// size: addresses that collide on purpose make it slower, and no more.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(b.into()));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_i32(&mut self, word: i32) {
        self.write_u64(word as u64);
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

type Cache<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// Reads and remembers instructions. A section's number stands for its code.
pub struct Instructions {
    sections: Rc<Sections>,
    ends: Cache<(i32, u64), Transfer>,
    jumps: Cache<(i32, u64, u64, u16), Jumps>,
}

impl Instructions {
    pub fn new(sections: Rc<Sections>) -> Self {
        Self { sections, ends: Cache::default(), jumps: Cache::default() }
    }

    fn at(&self, isid: i32, ip: u64) -> Option<Insn> {
        let mut bytes = [0; 15];
        let n = self.sections.read(isid, ip, &mut bytes);
        insn::decode(&bytes[..n])
    }

    /// How a block's last instruction transfers control.
    pub fn end(&mut self, block: &Block) -> Transfer {
        if let Some(bytes) = block.truncated() {
            return insn::decode(bytes).map_or(Transfer::None, |insn| insn.transfer);
        }
        let key = (block.isid, block.end_ip);
        if let Some(&known) = self.ends.get(&key) {
            return known;
        }
        if self.ends.len() >= MAX_CACHED {
            self.ends.clear();
        }
        let transfer = self.at(key.0, key.1).map_or(Transfer::None, |insn| insn.transfer);
        self.ends.insert(key, transfer);
        transfer
    }

    /// The jumps that a block follows: it ends behind calls, but not behind those.
    pub fn jumps(&mut self, block: &Block) -> Jumps {
        let key = (block.isid, block.ip, block.end_ip, block.ninsn);
        if let Some(known) = self.jumps.get(&key) {
            return known.clone();
        }
        if self.jumps.len() >= MAX_CACHED {
            self.jumps.clear();
        }
        let mut found = Vec::new();
        self.walk(block, |ip, insn| {
            if let (Transfer::Jump(Some(by)), true) = (insn.transfer, ip != block.end_ip) {
                found.push((ip, ip.wrapping_add(u64::from(insn.len)).wrapping_add_signed(by.into())));
            }
        });
        let found: Jumps = found.into();
        self.jumps.insert(key, found.clone());
        found
    }

    /// Calls `each` with the instructions of a block in order.
    fn walk(&self, block: &Block, mut each: impl FnMut(u64, Insn)) {
        let mut ip = block.ip;
        for _ in 0..block.ninsn {
            let Some(insn) = self.at(block.isid, ip) else { return };
            each(ip, insn);
            if ip == block.end_ip {
                return;
            }
            ip = ip.wrapping_add(insn.len.into());
            // Of conditional jumps a block goes on behind those that were not taken only.
            if let Transfer::Jump(Some(by)) = insn.transfer {
                ip = ip.wrapping_add_signed(by.into());
            }
        }
    }

    /// The likeliest of the blocks' instructions to wait at, and its address.
    pub fn stall(&self, blocks: &[Block]) -> (Stall, u64) {
        let mut best = (Stall::Unknown, 0);
        for block in blocks {
            self.walk(block, |ip, insn| {
                // The later of equals: the earlier ones are over.
                if best.0 == Stall::Unknown || insn.stall <= best.0 {
                    best = (insn.stall, ip);
                }
            });
        }
        best
    }
}
