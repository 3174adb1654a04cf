// SPDX-License-Identifier: GPL-2.0-only
//! Return addresses for RET compression.

/// The processor keeps the last 64.
const DEPTH: usize = 64;

#[derive(Debug, Default)]
pub struct Returns {
    stack: std::collections::VecDeque<u64>,
}

impl Returns {
    /// A call to `to` that will return to `next`. A call to the next instruction only reads the instruction pointer; it
    /// is not kept.
    pub fn push(&mut self, next: u64, to: u64) {
        if to == next {
            return;
        }
        if self.stack.len() == DEPTH {
            self.stack.pop_front();
        }
        self.stack.push_back(next);
    }

    pub fn pop(&mut self) -> Option<u64> {
        self.stack.pop_back()
    }

    /// A decoder that begins here does not know any calls.
    pub fn clear(&mut self) {
        self.stack.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_65_calls_is_forgotten() {
        let mut returns = Returns::default();
        (1..=65).for_each(|next| returns.push(next, 1000));
        assert_eq!(
            std::iter::from_fn(|| returns.pop()).collect::<Vec<_>>(),
            (2..=65).rev().collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_call_to_the_next_instruction_is_no_call() {
        let mut returns = Returns::default();
        returns.push(0x1005, 0x1005);
        assert_eq!(returns.pop(), None);
    }
}
