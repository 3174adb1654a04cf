// SPDX-License-Identifier: GPL-2.0-only
//! The blocks that ran last: if the core waited, it waited in one of them.

use crate::libipt::Block;

/// Blocks kept to find the instruction that the core waited at: a power of 2.
const RECENT: usize = 16;

#[derive(Default)]
pub struct Recent {
    blocks: Vec<Block>,
    n: usize,
}

impl Recent {
    pub fn push(&mut self, block: &Block) {
        match self.blocks.get_mut(self.n & (RECENT - 1)) {
            Some(slot) => *slot = *block,
            None => self.blocks.push(*block),
        }
        self.n += 1;
    }

    pub fn clear(&mut self) {
        self.n = 0;
    }

    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// In the order in which they ran.
    pub fn in_order(&self) -> Vec<Block> {
        (self.n.saturating_sub(RECENT)..self.n).map(|n| self.blocks[n & (RECENT - 1)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_in_order() {
        let mut recent = Recent::default();
        let mut block: Block = unsafe { std::mem::zeroed() };
        let ips = |recent: &Recent| recent.in_order().iter().map(|b| b.ip).collect::<Vec<_>>();
        for ip in 0..20 {
            block.ip = ip;
            recent.push(&block);
        }
        assert_eq!(ips(&recent), (4..20).collect::<Vec<_>>());
        recent.clear();
        assert!(recent.is_empty());
        recent.push(&block);
        assert_eq!(ips(&recent), [19]);
    }
}
