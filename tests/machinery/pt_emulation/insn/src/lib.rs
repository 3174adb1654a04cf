// SPDX-License-Identifier: GPL-2.0-only
//! The meaning of an x86-64 instruction for Intel PT, from iced-x86.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Displacements of marks: `nop dword [rax + MARK + id]` with id below 0x10000 (0f 1f 80 imm32).
pub const MARK: u32 = 0x4e53_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Falls through to the next instruction.
    Other,
    /// Conditional near branch (jcc, loop, jrcxz); `rel` is from the next instruction.
    Cond {
        rel: i32,
    },
    Jump {
        rel: i32,
    },
    Call {
        rel: i32,
    },
    IndirectJump,
    IndirectCall,
    Ret,
    /// syscall, sysret, sysenter, sysexit, iret, int n, int3, far jumps, calls and returns.
    Far,
    Hlt,
    MovToCr3,
    /// rdtsc and rdtscp.
    Rdtsc,
    Mark {
        id: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// Length in bytes, 1 to 15.
    pub len: u8,
    pub class: Class,
}

impl Insn {
    /// Where a direct branch at `ip` goes when taken.
    pub fn target(&self, ip: u64) -> Option<u64> {
        match self.class {
            Class::Cond { rel } | Class::Jump { rel } | Class::Call { rel } => {
                Some(self.next(ip).wrapping_add_signed(rel.into()))
            }
            _ => None,
        }
    }

    /// The address after the instruction.
    pub fn next(&self, ip: u64) -> u64 {
        ip.wrapping_add(self.len.into())
    }
}

/// The instruction at the start of `bytes`, in 64-bit mode; None if there is none.
pub fn decode(bytes: &[u8]) -> Option<Insn> {
    let x = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    (!x.is_invalid()).then(|| Insn { len: x.len() as u8, class: classify(&x) })
}

fn classify(x: &Instruction) -> Class {
    // The decoder's first instruction is at address 0.
    let rel = x.near_branch64().wrapping_sub(x.len() as u64) as i32;
    match x.flow_control() {
        FlowControl::ConditionalBranch => Class::Cond { rel },
        FlowControl::UnconditionalBranch => Class::Jump { rel },
        FlowControl::IndirectBranch if x.is_jmp_far_indirect() => Class::Far,
        FlowControl::IndirectBranch => Class::IndirectJump,
        FlowControl::Call if x.is_call_near() => Class::Call { rel },
        FlowControl::IndirectCall if x.is_call_near_indirect() => Class::IndirectCall,
        FlowControl::Return if x.mnemonic() == Mnemonic::Ret => Class::Ret,
        FlowControl::Call | FlowControl::IndirectCall | FlowControl::Return | FlowControl::Interrupt => {
            Class::Far
        }
        FlowControl::Next | FlowControl::Exception | FlowControl::XbeginXabortXend => straight(x),
    }
}

/// Of an instruction that falls through.
fn straight(x: &Instruction) -> Class {
    match x.mnemonic() {
        Mnemonic::Hlt => Class::Hlt,
        Mnemonic::Rdtsc | Mnemonic::Rdtscp => Class::Rdtsc,
        Mnemonic::Mov if x.op0_register() == Register::CR3 => Class::MovToCr3,
        Mnemonic::Nop if x.op0_kind() == OpKind::Memory => {
            let displacement = x.memory_displacement32();
            if x.memory_displ_size() > 1 && displacement & 0xffff_0000 == MARK {
                Class::Mark { id: displacement as u16 }
            } else {
                Class::Other
            }
        }
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], class: Class) {
        let insn = decode(bytes).expect("decodes");
        assert_eq!((insn.len as usize, insn.class), (bytes.len(), class));
    }

    #[test]
    fn branches_are_told_apart() {
        check(&[0x74, 0xfe], Class::Cond { rel: -2 });
        check(&[0x0f, 0x85, 0x10, 0, 0, 0], Class::Cond { rel: 16 });
        check(&[0xe2, 0x02], Class::Cond { rel: 2 }); // loop
        check(&[0xe3, 0x02], Class::Cond { rel: 2 }); // jrcxz
        check(&[0xeb, 0x05], Class::Jump { rel: 5 });
        check(&[0xe9, 0xfb, 0xff, 0xff, 0xff], Class::Jump { rel: -5 });
        check(&[0xe8, 0, 1, 0, 0], Class::Call { rel: 256 });
        check(&[0xff, 0xe0], Class::IndirectJump);
        check(&[0x3e, 0xff, 0xe0], Class::IndirectJump); // notrack
        check(&[0xff, 0xd0], Class::IndirectCall);
        check(&[0xff, 0x15, 0, 0, 0, 0], Class::IndirectCall); // through memory
        check(&[0xc3], Class::Ret);
        check(&[0xf3, 0xc3], Class::Ret);
        check(&[0xc2, 8, 0], Class::Ret);
    }

    #[test]
    fn far_transfers_are_far() {
        for bytes in [
            &[0x0f, 0x05][..],   // syscall
            &[0x48, 0x0f, 0x07], // sysretq
            &[0x48, 0xcf],       // iretq
            &[0xcc],             // int3
            &[0xcd, 0x80],       // int 0x80
            &[0x48, 0xcb],       // retfq
            &[0xff, 0x2c, 0x24], // jmp far [rsp]
            &[0x0f, 0x34],       // sysenter
        ] {
            check(bytes, Class::Far);
        }
    }

    #[test]
    fn what_time_and_address_spaces_need_is_seen() {
        check(&[0xf4], Class::Hlt);
        check(&[0x0f, 0x31], Class::Rdtsc);
        check(&[0x0f, 0x01, 0xf9], Class::Rdtsc);
        check(&[0x0f, 0x22, 0xd8], Class::MovToCr3); // mov cr3, rax
        check(&[0x0f, 0x20, 0xd8], Class::Other); // mov rax, cr3
        check(&[0x0f, 0x22, 0xe0], Class::Other); // mov cr4, rax
    }

    #[test]
    fn marks_are_nops_of_one_displacement() {
        check(&[0x0f, 0x1f, 0x80, 0x07, 0, 0x53, 0x4e], Class::Mark { id: 7 });
        check(&[0x0f, 0x1f, 0x80, 0, 0, 0, 0], Class::Other);
        check(&[0x90], Class::Other);
        check(&[0xf3, 0x0f, 0x1e, 0xfa], Class::Other); // endbr64
    }

    #[test]
    fn targets_count_from_the_next_instruction() {
        assert_eq!(decode(&[0x74, 0xfe]).unwrap().target(0x1000), Some(0x1000));
        assert_eq!(decode(&[0xff, 0xe0]).unwrap().target(0x1000), None);
    }

    #[test]
    fn what_is_no_instruction_is_none() {
        assert_eq!(decode(&[0x0f]), None);
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&[0x06]), None); // push es: not in 64-bit mode
    }
}
