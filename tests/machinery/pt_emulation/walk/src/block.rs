// SPDX-License-Identifier: GPL-2.0-only
//! Decoded blocks: the positions of their instructions, and what the last one can do.

use pt_insn::{Class, Insn};

/// A block from the log's definition, decoded once.
pub struct Block {
    /// The address with which it was defined; it may run at others.
    pub ip: u64,
    /// Offset of each instruction from the start, and of the end.
    offsets: Vec<u16>,
    pub last: Insn,
}

impl Block {
    /// None: the bytes are not `n_insns` instructions.
    pub fn decode(ip: u64, n_insns: u32, bytes: &[u8]) -> Option<Self> {
        let mut offsets = Vec::with_capacity(n_insns as usize + 1);
        let mut last = None;
        let mut offset = 0;
        while offset < bytes.len() {
            let insn = pt_insn::decode(&bytes[offset..])?;
            offsets.push(offset as u16);
            offset += usize::from(insn.len);
            last = Some(insn);
        }
        offsets.push(offset as u16);
        (offsets.len() == n_insns as usize + 1 && offset == bytes.len()).then_some(())?;
        Some(Self { ip, offsets, last: last? })
    }

    pub fn n_insns(&self) -> u32 {
        self.offsets.len() as u32 - 1
    }

    /// Bytes from the start to instruction `n`; for `n_insns`, the block's length.
    pub fn offset(&self, n: u32) -> u64 {
        self.offsets[n as usize].into()
    }
}

/// The last block that a CPU executed, and how far it came.
#[derive(Clone, Copy)]
pub struct Execution {
    pub block: u32,
    /// Address at which the block ran.
    pub ip: u64,
    pub n_started: u32,
}

/// An execution with its block.
pub struct Ran<'a> {
    pub block: &'a Block,
    pub ip: u64,
    pub n_started: u32,
}

impl Ran<'_> {
    pub fn is_complete(&self) -> bool {
        self.n_started == self.block.n_insns()
    }

    /// Address of the last instruction that started; if none did, that of the block.
    pub fn last_ip(&self) -> u64 {
        self.ip.wrapping_add(self.block.offset(self.n_started.saturating_sub(1)))
    }

    /// Address after the last instruction that started.
    pub fn next_ip(&self) -> u64 {
        self.ip.wrapping_add(self.block.offset(self.n_started))
    }

    /// Effect of the last instruction when it retires. Only the last one of a block can branch.
    pub fn class(&self) -> Class {
        if self.is_complete() {
            self.block.last.class
        } else {
            Class::Other
        }
    }

    pub fn target(&self) -> Option<u64> {
        self.block.last.target(self.last_ip())
    }
}
