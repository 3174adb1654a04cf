// SPDX-License-Identifier: GPL-2.0-only
//! What an x86 instruction does, from iced-x86.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

use crate::libipt;
use crate::numbered::named;

/// How an instruction transfers control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    None,
    /// Near jump, conditional or not; None: through a register or memory.
    Jump(Option<i32>),
    Call(Reach),
    Return,
    /// syscall, sysenter
    Syscall,
    /// sysret, sysexit
    Sysret,
    Iret,
    /// int n, int3, into, int1
    Interrupt,
    FarCall,
    FarReturn,
    FarJump,
}

/// How a near call finds its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Direct,
    /// Through a register or memory.
    Indirect,
}

named! {
    /// Instructions that can stop a core for long, the most likely first. The names appear in `gap_cause` of the calls
    /// table.
    pub enum Stall {
        Unknown "unknown",
        Halt "HLT",
        Mwait "MWAIT",
        PortIo "IN/OUT",
        Wrmsr "WRMSR",
        Pause "PAUSE",
        FarTransfer "far transfer",
        Memory "memory access",
        Other "other instruction",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    pub len: u8,
    pub transfer: Transfer,
    pub stall: Stall,
}

/// The instruction at the start of `bytes`; None if there is none. `mode`: the processor's mode, as in `libipt::Block`.
pub fn decode(bytes: &[u8], mode: u32) -> Option<Insn> {
    let bits = match mode {
        libipt::MODE_16 => 16,
        libipt::MODE_32 => 32,
        _ => 64,
    };
    let x = Decoder::new(bits, bytes, DecoderOptions::NONE).decode();
    if x.is_invalid() {
        return None;
    }
    let transfer = transfer(&x);
    Some(Insn { len: x.len() as u8, transfer, stall: stall(&x, transfer) })
}

fn transfer(x: &Instruction) -> Transfer {
    match x.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => match displacement(x) {
            None => Transfer::FarJump,
            to => Transfer::Jump(to),
        },
        FlowControl::IndirectBranch if x.is_jmp_far_indirect() => Transfer::FarJump,
        FlowControl::IndirectBranch => Transfer::Jump(None),
        FlowControl::Call | FlowControl::IndirectCall => match x.mnemonic() {
            Mnemonic::Syscall | Mnemonic::Sysenter => Transfer::Syscall,
            Mnemonic::Call if x.is_call_far() || x.is_call_far_indirect() => Transfer::FarCall,
            Mnemonic::Call if x.is_call_near() => Transfer::Call(Reach::Direct),
            Mnemonic::Call => Transfer::Call(Reach::Indirect),
            _ => Transfer::None,
        },
        FlowControl::Return => match x.mnemonic() {
            Mnemonic::Ret => Transfer::Return,
            Mnemonic::Retf => Transfer::FarReturn,
            Mnemonic::Sysret | Mnemonic::Sysretq | Mnemonic::Sysexit | Mnemonic::Sysexitq | Mnemonic::Rsm => {
                Transfer::Sysret
            }
            Mnemonic::Iret
            | Mnemonic::Iretd
            | Mnemonic::Iretq
            | Mnemonic::Uiret
            | Mnemonic::Eretu
            | Mnemonic::Erets => Transfer::Iret,
            _ => Transfer::None,
        },
        FlowControl::Interrupt => Transfer::Interrupt,
        FlowControl::Next | FlowControl::Exception | FlowControl::XbeginXabortXend => Transfer::None,
    }
}

/// Of a near branch to a fixed target, from the next instruction.
fn displacement(x: &Instruction) -> Option<i32> {
    // The decoder's first instruction is at address 0.
    let len = x.len() as u16;
    match x.op0_kind() {
        OpKind::NearBranch16 => Some(x.near_branch16().wrapping_sub(len) as i16 as i32),
        OpKind::NearBranch32 => Some(x.near_branch32().wrapping_sub(len.into()) as i32),
        OpKind::NearBranch64 => Some(x.near_branch64().wrapping_sub(len.into()) as i32),
        _ => None,
    }
}

fn stall(x: &Instruction, transfer: Transfer) -> Stall {
    match x.mnemonic() {
        Mnemonic::Hlt => Stall::Halt,
        Mnemonic::Mwait | Mnemonic::Mwaitx | Mnemonic::Umwait | Mnemonic::Tpause => Stall::Mwait,
        Mnemonic::In
        | Mnemonic::Insb
        | Mnemonic::Insw
        | Mnemonic::Insd
        | Mnemonic::Out
        | Mnemonic::Outsb
        | Mnemonic::Outsw
        | Mnemonic::Outsd => Stall::PortIo,
        Mnemonic::Wrmsr | Mnemonic::Wrmsrns => Stall::Wrmsr,
        Mnemonic::Pause => Stall::Pause,
        Mnemonic::Lea | Mnemonic::Nop | Mnemonic::Reservednop => Stall::Other,
        _ => match transfer {
            Transfer::Syscall
            | Transfer::Sysret
            | Transfer::Iret
            | Transfer::Interrupt
            | Transfer::FarCall
            | Transfer::FarReturn
            | Transfer::FarJump => Stall::FarTransfer,
            // The stack is usually in the cache: access to it does not make an instruction special.
            Transfer::Call(_) | Transfer::Return => Stall::Other,
            _ if explicit_memory(x) => Stall::Memory,
            _ => Stall::Other,
        },
    }
}

/// Whether an operand is in memory, other than the stack of push and pop.
fn explicit_memory(x: &Instruction) -> bool {
    !matches!(x.mnemonic(), Mnemonic::Push | Mnemonic::Pop)
        && x.op_kinds().any(|kind| (OpKind::MemorySegSI..=OpKind::Memory).contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], transfer: Transfer, stall: Stall) {
        assert_eq!(decode(bytes, libipt::MODE_64), Some(Insn { len: bytes.len() as u8, transfer, stall }));
    }

    #[test]
    fn transfers_are_told_apart() {
        use Transfer::{Call, FarCall, FarJump, FarReturn, Interrupt, Iret, Jump, Return, Syscall, Sysret};
        check(&[0x74, 0xfe], Jump(Some(-2)), Stall::Other);
        check(&[0xe9, 0xfb, 0xff, 0xff, 0xff], Jump(Some(-5)), Stall::Other);
        check(&[0xff, 0xe0], Jump(Option::None), Stall::Other);
        check(&[0xe8, 0, 1, 0, 0], Call(Reach::Direct), Stall::Other);
        check(&[0xff, 0xd0], Call(Reach::Indirect), Stall::Other);
        check(&[0xc3], Return, Stall::Other);
        check(&[0x0f, 0x05], Syscall, Stall::FarTransfer);
        check(&[0x0f, 0x34], Syscall, Stall::FarTransfer);
        check(&[0x48, 0x0f, 0x07], Sysret, Stall::FarTransfer);
        check(&[0x0f, 0x35], Sysret, Stall::FarTransfer);
        check(&[0x48, 0xcf], Iret, Stall::FarTransfer);
        check(&[0xcc], Interrupt, Stall::FarTransfer);
        check(&[0xcd, 0x80], Interrupt, Stall::FarTransfer);
        check(&[0x48, 0xcb], FarReturn, Stall::FarTransfer);
        check(&[0xff, 0x2c, 0x24], FarJump, Stall::FarTransfer);
        check(&[0xff, 0x1c, 0x24], FarCall, Stall::FarTransfer);
    }

    #[test]
    fn what_can_stop_a_core_is_seen() {
        for (bytes, stall) in [
            (&[0xf4][..], Stall::Halt),
            (&[0x0f, 0x01, 0xc9], Stall::Mwait),
            (&[0x66, 0x0f, 0xae, 0xf0], Stall::Mwait), // tpause eax
            (&[0xec], Stall::PortIo),                  // in al, dx
            (&[0xef], Stall::PortIo),                  // out dx, eax
            (&[0xf3, 0x6c], Stall::PortIo),            // rep insb
            (&[0x0f, 0x30], Stall::Wrmsr),
            (&[0xf3, 0x90], Stall::Pause),
            (&[0x8b, 0x00], Stall::Memory),             // mov eax, [rax]
            (&[0xf0, 0x0f, 0xb1, 0x0f], Stall::Memory), // lock cmpxchg [rdi], ecx
            (&[0x48, 0x8d, 0x00], Stall::Other),        // lea
            (&[0x0f, 0x1f, 0x00], Stall::Other),        // nop [rax]
            (&[0x50], Stall::Other),                    // push
            (&[0xc9], Stall::Other),                    // leave
            (&[0xf3, 0xa4], Stall::Memory),             // rep movsb
            (&[0x01, 0xc8], Stall::Other),
        ] {
            check(bytes, Transfer::None, stall);
        }
    }

    #[test]
    fn transactions_do_not_jump() {
        check(&[0xc7, 0xf8, 0x10, 0, 0, 0], Transfer::None, Stall::Other); // xbegin
        check(&[0xc6, 0xf8, 1], Transfer::None, Stall::Other); // xabort
        check(&[0x0f, 0x01, 0xd5], Transfer::None, Stall::Other); // xend
    }

    #[test]
    fn fred_returns_are_returns_from_interrupts() {
        check(&[0xf3, 0x0f, 0x01, 0xca], Transfer::Iret, Stall::FarTransfer); // eretu
        check(&[0xf2, 0x0f, 0x01, 0xca], Transfer::Iret, Stall::FarTransfer); // erets
    }

    #[test]
    fn what_is_no_instruction_is_none() {
        assert_eq!(decode(&[0x0f], libipt::MODE_64), None);
        assert_eq!(decode(&[], libipt::MODE_64), None);
        assert_eq!(decode(&[0x06], libipt::MODE_64), None);
    }

    #[test]
    fn instructions_are_of_the_mode() {
        let length = |bytes: &[u8], mode| decode(bytes, mode).map(|insn| insn.len);
        // mov eax, [address]; push es; a relative call
        for (bytes, lengths) in [
            (&[0xa1, 1, 2, 3, 4, 5, 6, 7, 8][..], [Some(3), Some(5), Some(9)]),
            (&[0x06], [Some(1), Some(1), None]),
            (&[0xe8, 1, 0, 0, 0], [Some(3), Some(5), Some(5)]),
        ] {
            let modes = [libipt::MODE_16, libipt::MODE_32, libipt::MODE_64];
            assert_eq!(modes.map(|mode| length(bytes, mode)), lengths, "{bytes:x?}");
        }
    }
}
