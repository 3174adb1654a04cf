// SPDX-License-Identifier: GPL-2.0-only
//! Instructions of a block: direct jumps that leave a function, and instructions that a core may wait at.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use crate::code::Sections;
use crate::insn::{self, Insn, Stall, Transfer};
use crate::libipt::Block;

/// Entries of a cache; beyond this limit, the cache is made again.
const MAX_CACHED: usize = 1 << 16;

/// Direct jumps within a block: from, to. Few blocks have more than one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jumps {
    first: Option<(u64, u64)>,
    others: Option<Rc<Vec<(u64, u64)>>>,
}

impl Jumps {
    fn push(&mut self, jump: (u64, u64)) {
        match self.first {
            None => self.first = Some(jump),
            Some(_) => Rc::make_mut(self.others.get_or_insert_with(Rc::default)).push(jump),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &(u64, u64)> {
        self.first.iter().chain(self.others.iter().flat_map(|others| others.iter()))
    }
}

/// One multiplication per word. A large part of all blocks needs a lookup. The caches have a limited size: addresses
/// that collide on purpose only make them slower.
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

/// A key for the code: the section's number, and the processor's mode, which determines how the code is decoded.
fn code(block: &Block) -> i32 {
    block.isid << 2 | (block.mode & 3) as i32
}

/// Reads and remembers instructions.
pub struct Instructions {
    sections: Rc<Sections>,
    ends: Cache<(i32, u64), Transfer>,
    /// A cache by block address; a newer block replaces an older one.
    jumps: Vec<Option<(JumpsKey, Jumps)>>,
}

/// Code, first and last instruction, number of instructions.
type JumpsKey = (i32, u64, u64, u16);

/// Number of blocks whose jumps are kept: a power of 2. A fuzzer makes this cache again for each input.
const MAX_JUMPS: usize = 1 << if cfg!(fuzzing) { 5 } else { 13 };

impl Instructions {
    pub fn new(sections: Rc<Sections>) -> Self {
        Self { sections, ends: Cache::default(), jumps: vec![None; MAX_JUMPS] }
    }

    fn at(&self, block: &Block, ip: u64) -> Option<Insn> {
        let mut bytes = [0; 15];
        let n = self.sections.read(block.isid, ip, &mut bytes);
        insn::decode(&bytes[..n], block.mode)
    }

    /// How a block's last instruction transfers control.
    pub fn end(&mut self, block: &Block) -> Transfer {
        if let Some(bytes) = block.truncated() {
            return insn::decode(bytes, block.mode).map_or(Transfer::None, |insn| insn.transfer);
        }
        let key = (code(block), block.end_ip);
        if let Some(&known) = self.ends.get(&key) {
            return known;
        }
        if self.ends.len() >= MAX_CACHED {
            self.ends.clear();
        }
        let transfer = self.at(block, block.end_ip).map_or(Transfer::None, |insn| insn.transfer);
        self.ends.insert(key, transfer);
        transfer
    }

    /// The direct jumps within a block: blocks end after calls, but not after direct jumps.
    pub fn jumps(&mut self, block: &Block) -> Jumps {
        let key = (code(block), block.ip, block.end_ip, block.ninsn);
        let mixed = (block.ip ^ block.end_ip.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (mixed >> 32) as usize & (MAX_JUMPS - 1);
        if let Some((_, known)) = self.jumps[slot].as_ref().filter(|(of, _)| *of == key) {
            return known.clone();
        }
        let mut found = Jumps::default();
        self.walk(block, |ip, insn| {
            if let (Transfer::Jump(Some(by)), true) = (insn.transfer, ip != block.end_ip) {
                found.push((ip, ip.wrapping_add(u64::from(insn.len)).wrapping_add_signed(by.into())));
            }
        });
        self.jumps[slot] = Some((key, found.clone()));
        found
    }

    /// Calls `each` with the instructions of a block in order.
    fn walk(&self, block: &Block, mut each: impl FnMut(u64, Insn)) {
        let mut ip = block.ip;
        for _ in 0..block.ninsn {
            let Some(insn) = self.at(block, ip) else { return };
            each(ip, insn);
            if ip == block.end_ip {
                return;
            }
            ip = ip.wrapping_add(insn.len.into());
            // Blocks end at conditional jumps: the others are always taken.
            if let Transfer::Jump(Some(by)) = insn.transfer {
                ip = ip.wrapping_add_signed(by.into());
            }
        }
    }

    /// The instruction of these blocks that the core most likely waited at, and its address.
    pub fn stall(&self, blocks: &[Block]) -> (Stall, u64) {
        let mut best = (Stall::Unknown, 0);
        for block in blocks {
            self.walk(block, |ip, insn| {
                // If two are equally likely, take the later one: the earlier one is over.
                if best.0 == Stall::Unknown || insn.stall <= best.0 {
                    best = (insn.stall, ip);
                }
            });
        }
        best
    }
}
