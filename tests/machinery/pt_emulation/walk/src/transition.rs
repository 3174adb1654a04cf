// SPDX-License-Identifier: GPL-2.0-only
//! Checks a transition from one executed block to the next: does the code allow it, and which branch was it?

use pt_events::Kind;
use pt_insn::Class;

use crate::block::Ran;

/// How execution reached the next block from a block.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// The branch at the end of the block, if it had one and it retired.
    pub branch: Option<Kind>,
    /// The interrupt or exception after it.
    pub entry: Option<Kind>,
    /// Whether the last instruction that started retired.
    pub retired: bool,
}

/// The code does not allow this transition.
#[derive(Debug, PartialEq, Eq)]
pub struct Impossible;

/// Interrupt or exception frame on the handler's stack.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub vector: u8,
    pub stack: [u64; 6],
}

impl Frame {
    /// The interrupted address. Some exceptions push an error code before it: Intel SDM
    /// volume 3, table 6-1.
    pub fn rip(&self) -> u64 {
        let has_error_code = matches!(self.vector, 8 | 10..=14 | 17 | 21 | 29 | 30);
        self.stack[usize::from(has_error_code)]
    }
}

/// The branch that leads from the end of a complete block to `to`.
fn branch_to(ran: &Ran, to: u64) -> Result<Option<Kind>, Impossible> {
    let (from, next) = (ran.last_ip(), ran.next_ip());
    let is_target = ran.target() == Some(to);
    Ok(Some(match ran.class() {
        // Check not taken first: a branch to the next instruction looks the same in both cases.
        Class::Cond { .. } if to == next => Kind::Cond { from, to, taken: false },
        Class::Cond { .. } if is_target => Kind::Cond { from, to, taken: true },
        Class::Jump { .. } if is_target => Kind::Jump { from, to },
        Class::Call { .. } if is_target => Kind::Call { from, to, next },
        Class::IndirectJump => Kind::IndirectJump { from, to },
        Class::IndirectCall => Kind::IndirectCall { from, to, next },
        Class::Ret => Kind::Ret { from, to },
        Class::Far => Kind::Far { from, to },
        Class::Cond { .. } | Class::Jump { .. } | Class::Call { .. } => return Err(Impossible),
        _ if to == next => return Ok(None),
        _ => return Err(Impossible),
    }))
}

/// A transition without interrupt or exception.
pub fn step(ran: &Ran, to: u64) -> Result<Step, Impossible> {
    let retired = |branch| Step { branch, entry: None, retired: true };
    let again = Step { branch: None, entry: None, retired: false };
    if ran.n_started == 0 {
        return if to == ran.ip { Ok(again) } else { Err(Impossible) };
    }
    if let Ok(branch) = branch_to(ran, to) {
        return Ok(retired(branch));
    }
    // A `rep` instruction runs one block per iteration; a device access runs again, in a separate block.
    if to == ran.last_ip() && matches!(ran.class(), Class::Other) {
        return Ok(again);
    }
    Err(Impossible)
}

/// A transition with an interrupt or exception, to the handler at `to`.
pub fn step_into_handler(ran: &Ran, frame: &Frame, to: u64) -> Result<Step, Impossible> {
    let rip = frame.rip();
    let vector = frame.vector;
    let entry = Some(Kind::Async { from: rip, to, vector });
    if ran.n_started == 0 {
        let before = Step { branch: None, entry, retired: false };
        return if rip == ran.ip { Ok(before) } else { Err(Impossible) };
    }
    let (last, next) = (ran.last_ip(), ran.next_ip());
    // int3, int n: the instruction itself goes to the handler.
    if ran.class() == Class::Far && rip == next {
        let branch = Some(Kind::Far { from: last, to });
        return Ok(Step { branch, entry: None, retired: true });
    }
    // A fault saves the address of the faulting instruction. Jumps do not fault (not even to a missing page: that is
    // the fault of the next instruction), so a jump to itself retired.
    let jumps = matches!(ran.class(), Class::Cond { .. } | Class::Jump { .. });
    if rip == last && !jumps {
        return Ok(Step { branch: None, entry, retired: false });
    }
    branch_to(ran, rip).map(|branch| Step { branch, entry, retired: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;

    const HANDLER: u64 = 0xffff_ffff_8200_0000;

    /// nop at 0x1000, then the given last instruction at 0x1001.
    fn block(last: &[u8]) -> Block {
        Block::decode(0x1000, 2, &[&[0x90], last].concat()).unwrap()
    }

    fn ran(block: &Block, n_started: u32) -> Ran<'_> {
        Ran { block, ip: 0x1000, n_started }
    }

    fn branch(last: &[u8], to: u64) -> Result<Option<Kind>, Impossible> {
        step(&ran(&block(last), 2), to).map(|s| s.branch)
    }

    fn frame(vector: u8, rip: u64) -> Frame {
        let stack = if vector == 14 { [7, rip, 0x33, 0, 0, 0] } else { [rip, 0x33, 0, 0, 0, 0] };
        Frame { vector, stack }
    }

    fn async_from(from: u64, vector: u8) -> Option<Kind> {
        Some(Kind::Async { from, to: HANDLER, vector })
    }

    #[test]
    fn direct_branches_go_where_they_say_and_nowhere_else() {
        // jne +0x10 at 0x1001, two bytes: falls to 0x1003, goes to 0x1013
        let jne = [0x75, 0x10];
        assert_eq!(branch(&jne, 0x1013), Ok(Some(Kind::Cond { from: 0x1001, to: 0x1013, taken: true })));
        assert_eq!(branch(&jne, 0x1003), Ok(Some(Kind::Cond { from: 0x1001, to: 0x1003, taken: false })));
        assert_eq!(branch(&jne, 0x1014), Err(Impossible));
        assert_eq!(branch(&[0xeb, 0x10], 0x1013), Ok(Some(Kind::Jump { from: 0x1001, to: 0x1013 })));
        assert_eq!(branch(&[0xeb, 0x10], 0x1003), Err(Impossible));
        // call +0x10, five bytes
        let call = Kind::Call { from: 0x1001, to: 0x1016, next: 0x1006 };
        assert_eq!(branch(&[0xe8, 0x10, 0, 0, 0], 0x1016), Ok(Some(call)));
        assert_eq!(branch(&[0xe8, 0x10, 0, 0, 0], 0x1006), Err(Impossible));
    }

    #[test]
    fn indirect_branches_may_go_anywhere() {
        assert_eq!(branch(&[0xff, 0xe0], 0x77), Ok(Some(Kind::IndirectJump { from: 0x1001, to: 0x77 })));
        let call = Kind::IndirectCall { from: 0x1001, to: 0x77, next: 0x1003 };
        assert_eq!(branch(&[0xff, 0xd0], 0x77), Ok(Some(call)));
        assert_eq!(branch(&[0xc3], 0x77), Ok(Some(Kind::Ret { from: 0x1001, to: 0x77 })));
        assert_eq!(branch(&[0x0f, 0x05], 0x77), Ok(Some(Kind::Far { from: 0x1001, to: 0x77 })));
    }

    #[test]
    fn what_is_no_branch_falls_through_or_runs_again() {
        let rep_movsb = [0xf3, 0xa4];
        assert_eq!(branch(&rep_movsb, 0x1003), Ok(None));
        let block = block(&rep_movsb);
        let again = Step { branch: None, entry: None, retired: false };
        assert_eq!(step(&ran(&block, 2), 0x1001), Ok(again));
        assert_eq!(step(&ran(&block, 2), 0x1000), Err(Impossible));
    }

    #[test]
    fn a_block_left_early_goes_on_where_it_was_left() {
        let block = block(&[0xc3]);
        // Only the nop started: it runs again (device), or the instruction after it comes next.
        assert!(!step(&ran(&block, 1), 0x1000).unwrap().retired);
        assert!(step(&ran(&block, 1), 0x1001).unwrap().retired);
        assert_eq!(step(&ran(&block, 1), 0x1002), Err(Impossible));
        // Nothing started.
        assert!(!step(&ran(&block, 0), 0x1000).unwrap().retired);
        assert_eq!(step(&ran(&block, 0), 0x1001), Err(Impossible));
    }

    #[test]
    fn a_fault_keeps_its_instruction_from_retiring() {
        // A return that faults on the stack: the frame has the address of the return.
        let ret = block(&[0xc3]);
        let fault = Step { branch: None, entry: async_from(0x1001, 14), retired: false };
        assert_eq!(step_into_handler(&ran(&ret, 2), &frame(14, 0x1001), HANDLER), Ok(fault));
        // A fault of the first instruction.
        let first = step_into_handler(&ran(&ret, 1), &frame(14, 0x1000), HANDLER).unwrap();
        assert_eq!((first.branch, first.retired), (None, false));
    }

    #[test]
    fn an_interrupt_comes_after_the_branch() {
        let ret = block(&[0xc3]);
        let step = step_into_handler(&ran(&ret, 2), &frame(236, 0x5000), HANDLER).unwrap();
        assert_eq!(step.branch, Some(Kind::Ret { from: 0x1001, to: 0x5000 }));
        assert_eq!(step.entry, async_from(0x5000, 236));
        let jne = block(&[0x75, 0x10]);
        let taken = step_into_handler(&ran(&jne, 2), &frame(236, 0x1013), HANDLER).unwrap();
        assert_eq!(taken.branch, Some(Kind::Cond { from: 0x1001, to: 0x1013, taken: true }));
        assert_eq!(step_into_handler(&ran(&jne, 2), &frame(236, 0x1014), HANDLER), Err(Impossible));
    }

    #[test]
    fn a_jump_to_itself_that_was_interrupted_had_retired() {
        let spin = block(&[0xeb, 0xfe]); // jmp .
        let step = step_into_handler(&ran(&spin, 2), &frame(236, 0x1001), HANDLER).unwrap();
        assert_eq!(step.branch, Some(Kind::Jump { from: 0x1001, to: 0x1001 }));
        assert!(step.retired);
    }

    #[test]
    fn the_error_code_is_not_the_address() {
        assert_eq!(frame(14, 0x1234).rip(), 0x1234);
        assert_eq!(frame(3, 0x1234).rip(), 0x1234);
    }

    #[test]
    fn a_breakpoint_is_a_branch_to_its_handler() {
        let int3 = block(&[0xcc]);
        let step = step_into_handler(&ran(&int3, 2), &frame(3, 0x1002), HANDLER).unwrap();
        assert_eq!(step.branch, Some(Kind::Far { from: 0x1001, to: HANDLER }));
        assert_eq!(step.entry, None);
    }
}
