// SPDX-License-Identifier: GPL-2.0-only
//! Registers and memory of the executing CPU.

use std::ffi::CStr;

use crate::ffi;

/// Handles of the registers that the observer reads; they are the same for every CPU.
pub struct Registers {
    pub rax: Register,
    pub rdx: Register,
    pub rdi: Register,
    pub rsi: Register,
    pub rsp: Register,
    pub rip: Register,
    pub cr3: Register,
    buffer: *mut ffi::ByteArray,
}

#[derive(Clone, Copy)]
pub struct Register(*mut std::ffi::c_void);

impl Registers {
    /// Must be called on a CPU's thread. Err: the name of a register that QEMU does not offer.
    pub fn find() -> Result<Self, &'static str> {
        // SAFETY: QEMU returns a GArray of descriptors, which is never freed.
        let list = unsafe {
            let array = ffi::qemu_plugin_get_registers();
            std::slice::from_raw_parts((*array).data, (*array).len as usize)
        };
        let find = |name: &'static str| {
            list.iter()
                .find(|r| unsafe { CStr::from_ptr(r.name) }.to_bytes() == name.as_bytes())
                .map(|r| Register(r.handle))
                .ok_or(name)
        };
        Ok(Self {
            rax: find("rax")?,
            rdx: find("rdx")?,
            rdi: find("rdi")?,
            rsi: find("rsi")?,
            rsp: find("rsp")?,
            rip: find("rip")?,
            cr3: find("cr3")?,
            buffer: unsafe { ffi::g_byte_array_new() },
        })
    }

    /// Value of a register of the executing CPU.
    pub fn read(&self, register: Register) -> u64 {
        // SAFETY: the buffer belongs to this thread; QEMU appends the register's bytes.
        unsafe {
            ffi::g_byte_array_set_size(self.buffer, 0);
            ffi::qemu_plugin_read_register(register.0, self.buffer);
            let bytes = std::slice::from_raw_parts((*self.buffer).data, (*self.buffer).len as usize);
            let mut value = [0; 8];
            let n = bytes.len().min(8);
            value[..n].copy_from_slice(&bytes[..n]);
            u64::from_le_bytes(value)
        }
    }

    /// `N` 64-bit words at a virtual address, if it is mapped.
    pub fn memory<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        // SAFETY: as above.
        unsafe {
            ffi::g_byte_array_set_size(self.buffer, 0);
            if !ffi::qemu_plugin_read_memory_vaddr(address, self.buffer, N * 8) {
                return None;
            }
            let bytes = std::slice::from_raw_parts((*self.buffer).data, (*self.buffer).len as usize);
            let mut words = [0; N];
            for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(chunk.try_into().unwrap());
            }
            Some(words)
        }
    }
}

/// Where Linux maps the IDT on every x86-64 CPU (CPU_ENTRY_AREA_RO_IDT in the kernel's tree).
const IDT: u64 = 0xffff_fe00_0000_0000;

/// Handler addresses of the 256 interrupt gates; 0 if there is none.
pub fn handlers(registers: &Registers) -> Option<Vec<u64>> {
    let gates: [u64; 512] = registers.memory(IDT)?;
    Some(gates.chunks_exact(2).map(gate_offset).collect())
}

/// The address a 64-bit interrupt gate leads to: Intel SDM volume 3, figure 6-8.
fn gate_offset(gate: &[u64]) -> u64 {
    let present = gate[0] >> 47 & 1 == 1;
    if !present {
        return 0;
    }
    gate[0] & 0xffff | (gate[0] >> 48) << 16 | (gate[1] & 0xffff_ffff) << 32
}

#[cfg(test)]
mod tests {
    use super::gate_offset;

    #[test]
    fn a_gates_address_is_put_together_from_three_parts() {
        // offset 15..0 = 0x5678, selector 0x10, type 14, present, offset 31..16 = 0x8100
        let low = 0x8100_8e00_0010_5678;
        assert_eq!(gate_offset(&[low, 0xffff_ffff]), 0xffff_ffff_8100_5678);
        assert_eq!(gate_offset(&[low & !(1 << 47), 0xffff_ffff]), 0);
    }
}
