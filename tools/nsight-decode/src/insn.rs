// SPDX-License-Identifier: GPL-2.0-only
//! What an x86 instruction does, from Intel XED.

use std::sync::Once;

use xed_sys::*;

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
    static TABLES: Once = Once::new();
    // SAFETY: called once, before any other XED function.
    TABLES.call_once(|| unsafe { xed_tables_init() });
    let (mode, width) = match mode {
        libipt::MODE_16 => (XED_MACHINE_MODE_LONG_COMPAT_16, XED_ADDRESS_WIDTH_16b),
        libipt::MODE_32 => (XED_MACHINE_MODE_LONG_COMPAT_32, XED_ADDRESS_WIDTH_32b),
        _ => (XED_MACHINE_MODE_LONG_64, XED_ADDRESS_WIDTH_64b),
    };
    let mut x = std::mem::MaybeUninit::<xed_decoded_inst_t>::uninit();
    // SAFETY: XED initialises the structure before it reads it, and reads at most 15 bytes of
    // the length it is given.
    let mut x = unsafe {
        xed_decoded_inst_zero(x.as_mut_ptr());
        xed_decoded_inst_set_mode(x.as_mut_ptr(), mode, width);
        x.assume_init()
    };
    let n = bytes.len().min(15) as u32;
    if unsafe { xed_decode(&mut x, bytes.as_ptr(), n) } != XED_ERROR_NONE {
        return None;
    }
    // SAFETY: `x` is a decoded instruction from here on.
    unsafe {
        let len = xed_decoded_inst_get_length(&x) as u8;
        let transfer = transfer(&x);
        Some(Insn { len, transfer, stall: stall(&x, transfer) })
    }
}

unsafe fn transfer(x: &xed_decoded_inst_t) -> Transfer {
    let iclass = xed_decoded_inst_get_iclass(x);
    let direct = xed_decoded_inst_get_branch_displacement_width(x) != 0;
    let to = direct.then(|| xed_decoded_inst_get_branch_displacement(x) as i32);
    match xed_decoded_inst_get_category(x) {
        XED_CATEGORY_UNCOND_BR if iclass == XED_ICLASS_JMP_FAR => Transfer::FarJump,
        XED_CATEGORY_COND_BR | XED_CATEGORY_UNCOND_BR => Transfer::Jump(to),
        XED_CATEGORY_CALL if iclass == XED_ICLASS_CALL_FAR => Transfer::FarCall,
        XED_CATEGORY_CALL if direct => Transfer::Call(Reach::Direct),
        XED_CATEGORY_CALL => Transfer::Call(Reach::Indirect),
        XED_CATEGORY_RET => match iclass {
            XED_ICLASS_RET_NEAR => Transfer::Return,
            XED_ICLASS_RET_FAR => Transfer::FarReturn,
            _ => Transfer::Iret,
        },
        XED_CATEGORY_INTERRUPT => Transfer::Interrupt,
        XED_CATEGORY_SYSCALL => Transfer::Syscall,
        XED_CATEGORY_SYSRET => Transfer::Sysret,
        _ => match iclass {
            XED_ICLASS_SYSENTER => Transfer::Syscall,
            XED_ICLASS_SYSEXIT => Transfer::Sysret,
            _ => Transfer::None,
        },
    }
}

unsafe fn stall(x: &xed_decoded_inst_t, transfer: Transfer) -> Stall {
    match xed_decoded_inst_get_iclass(x) {
        XED_ICLASS_HLT => Stall::Halt,
        XED_ICLASS_MWAIT | XED_ICLASS_MWAITX | XED_ICLASS_UMWAIT | XED_ICLASS_TPAUSE => Stall::Mwait,
        XED_ICLASS_IN | XED_ICLASS_INSB | XED_ICLASS_INSW | XED_ICLASS_INSD | XED_ICLASS_REP_INSB
        | XED_ICLASS_REP_INSW | XED_ICLASS_REP_INSD | XED_ICLASS_OUT | XED_ICLASS_OUTSB
        | XED_ICLASS_OUTSW | XED_ICLASS_OUTSD | XED_ICLASS_REP_OUTSB | XED_ICLASS_REP_OUTSW
        | XED_ICLASS_REP_OUTSD => Stall::PortIo,
        XED_ICLASS_WRMSR | XED_ICLASS_WRMSRNS => Stall::Wrmsr,
        XED_ICLASS_PAUSE => Stall::Pause,
        XED_ICLASS_LEA | XED_ICLASS_NOP => Stall::Other,
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

unsafe fn explicit_memory(x: &xed_decoded_inst_t) -> bool {
    let category = xed_decoded_inst_get_category(x);
    xed_decoded_inst_number_of_memory_operands(x) > 0
        && category != XED_CATEGORY_PUSH
        && category != XED_CATEGORY_POP
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
            (&[0x01, 0xc8], Stall::Other),
        ] {
            check(bytes, Transfer::None, stall);
        }
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
