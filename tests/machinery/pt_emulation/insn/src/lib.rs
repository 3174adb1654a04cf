// SPDX-License-Identifier: GPL-2.0-only
//! The meaning of an x86-64 instruction for Intel PT, from Intel XED.

use std::sync::Once;

use xed_sys::*;

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
    static TABLES: Once = Once::new();
    TABLES.call_once(|| unsafe { xed_tables_init() });
    let mut x = std::mem::MaybeUninit::<xed_decoded_inst_t>::uninit();
    // SAFETY: XED initialises the structure before it reads it, and reads at most 15 bytes of
    // the length it is given.
    let mut x = unsafe {
        xed_decoded_inst_zero(x.as_mut_ptr());
        xed_decoded_inst_set_mode(x.as_mut_ptr(), XED_MACHINE_MODE_LONG_64, XED_ADDRESS_WIDTH_64b);
        x.assume_init()
    };
    let n = bytes.len().min(15) as u32;
    if unsafe { xed_decode(&mut x, bytes.as_ptr(), n) } != XED_ERROR_NONE {
        return None;
    }
    // SAFETY: `x` is a decoded instruction from here on.
    unsafe {
        let len = xed_decoded_inst_get_length(&x) as u8;
        Some(Insn { len, class: classify(&x) })
    }
}

unsafe fn classify(x: &xed_decoded_inst_t) -> Class {
    let iclass = xed_decoded_inst_get_iclass(x);
    let rel = xed_decoded_inst_get_branch_displacement(x) as i32; // 8 or 32 bits wide
    let direct = xed_decoded_inst_get_branch_displacement_width(x) != 0;
    match xed_decoded_inst_get_category(x) {
        XED_CATEGORY_COND_BR => return Class::Cond { rel },
        XED_CATEGORY_UNCOND_BR if iclass == XED_ICLASS_JMP_FAR => return Class::Far,
        XED_CATEGORY_UNCOND_BR if direct => return Class::Jump { rel },
        XED_CATEGORY_UNCOND_BR => return Class::IndirectJump,
        XED_CATEGORY_CALL if iclass == XED_ICLASS_CALL_FAR => return Class::Far,
        XED_CATEGORY_CALL if direct => return Class::Call { rel },
        XED_CATEGORY_CALL => return Class::IndirectCall,
        XED_CATEGORY_RET if iclass == XED_ICLASS_RET_NEAR => return Class::Ret,
        XED_CATEGORY_RET | XED_CATEGORY_INTERRUPT | XED_CATEGORY_SYSCALL | XED_CATEGORY_SYSRET => {
            return Class::Far
        }
        _ => {}
    }
    match iclass {
        XED_ICLASS_HLT => Class::Hlt,
        XED_ICLASS_RDTSC | XED_ICLASS_RDTSCP => Class::Rdtsc,
        XED_ICLASS_MOV_CR if xed_decoded_inst_get_reg(x, XED_OPERAND_REG0) == XED_REG_CR3 => Class::MovToCr3,
        XED_ICLASS_NOP => {
            let disp = xed_decoded_inst_get_memory_displacement(x, 0) as u32;
            let wide = xed_decoded_inst_get_memory_displacement_width(x, 0) == 4;
            if wide && disp & 0xffff_0000 == MARK {
                Class::Mark { id: disp as u16 }
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
