//! Sums of blocks with Intel's AMX tiles. A tile instruction multiplies 16 rows by 16 columns with 32 inner values.

use super::pack::{Bf16Line, SIDE};
use super::tile::WIDTH;
use std::arch::asm;
use std::marker::PhantomData;

/// Layout of the eight tiles, as `ldtilecfg` reads it.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_a_row: [u16; 16],
    rows: [u8; 16],
}

/// Size of a tile's row, in bytes.
const ROW: usize = 64;

/// Ownership of the tiles by this thread. Until it is dropped, the thread runs nothing else that uses tiles.
pub(super) struct AmxTiles(PhantomData<*mut ()>);

impl AmxTiles {
    /// # Safety
    /// [`crate::processor`] has found tiles.
    pub(super) unsafe fn new() -> Self {
        let mut shapes = TileConfig { palette: 1, start_row: 0, reserved: [0; 14], bytes_a_row: [0; 16], rows: [0; 16] };
        shapes.bytes_a_row[..8].fill(ROW as u16);
        shapes.rows[..8].fill(SIDE as u8);
        // SAFETY: the shapes are valid for the only palette.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for AmxTiles {
    fn drop(&mut self) {
        // SAFETY: nothing is kept in tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Destination of the sums of blocks.
#[derive(Clone, Copy)]
pub(super) struct SumDestination {
    pub at: *mut f32,
    /// Distance from one row to the next, in values.
    pub stride: usize,
    /// Whether sums are added to the existing values.
    pub add: bool,
}

/// Multiplies the blocks at `a` with those at `b`: tiles 0 to 3 are sums, 4 and 5 blocks of rows, 6 and 7 of columns.
macro_rules! multiplied {
    ($a:ident, $b:ident, $steps:ident, $out:ident,
     [$($load:literal)*], [$($clear:literal)*], [$($step:literal)*], [$($store:literal)*], $($more:tt)*) => {
        asm!(
            "test {add}, {add}", "jz 3f", $($load,)* "jmp 2f",
            "3:", $($clear,)*
            "2:", $($step,)*
            "add {a}, 1024", "add {b}, 1024", "dec {steps}", "jnz 2b",
            $($store,)*
            a = inout(reg) $a => _, b = inout(reg) $b => _, steps = inout(reg) $steps => _, row = in(reg) ROW,
            add = in(reg) usize::from($out.add), o = in(reg) $out.at, s = in(reg) $out.stride * size_of::<f32>(),
            $($more)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack),
        )
    };
}

/// Computes the sums of one or two groups of rows with one or two of columns, each with `steps` blocks along the inner dimension.
///
/// # Safety
/// Tiles are in use, and `out` points to 16 values in each of 16 rows for each pair of groups.
pub(super) unsafe fn sums(a: &[Bf16Line], b: &[Bf16Line], steps: usize, out: SumDestination) {
    let group = steps * SIDE;
    let groups = (a.len() / group, b.len() / group);
    assert!(steps > 0 && a.len() == groups.0 * group && b.len() == groups.1 * group, "incomplete groups");
    let below = out.at.wrapping_add(SIDE * out.stride);
    let (a, b) = (a.as_ptr(), b.as_ptr());
    let (a_second, b_second) = (a.wrapping_add(group), b.wrapping_add(group));
    // SAFETY: the groups are as long as just checked, and the caller promises the rest.
    unsafe {
        match groups {
            (2, 2) => multiplied!(
                a, b, steps, out,
                ["tileloadd tmm0, [{o} + {s}*1]" "tileloadd tmm1, [{o} + {s}*1 + 64]"
                 "tileloadd tmm2, [{below} + {s}*1]" "tileloadd tmm3, [{below} + {s}*1 + 64]"],
                ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
                ["tileloadd tmm4, [{a} + {row}*1]" "tileloadd tmm6, [{b} + {row}*1]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm7, [{b1} + {row}*1]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm5, [{a1} + {row}*1]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
                 "add {a1}, 1024" "add {b1}, 1024"],
                ["tilestored [{o} + {s}*1], tmm0" "tilestored [{o} + {s}*1 + 64], tmm1"
                 "tilestored [{below} + {s}*1], tmm2" "tilestored [{below} + {s}*1 + 64], tmm3"],
                a1 = inout(reg) a_second => _, b1 = inout(reg) b_second => _, below = in(reg) below,
            ),
            (2, 1) => multiplied!(
                a, b, steps, out,
                ["tileloadd tmm0, [{o} + {s}*1]" "tileloadd tmm2, [{below} + {s}*1]"],
                ["tilezero tmm0" "tilezero tmm2"],
                ["tileloadd tmm4, [{a} + {row}*1]" "tileloadd tmm6, [{b} + {row}*1]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm5, [{a1} + {row}*1]" "tdpbf16ps tmm2, tmm5, tmm6" "add {a1}, 1024"],
                ["tilestored [{o} + {s}*1], tmm0" "tilestored [{below} + {s}*1], tmm2"],
                a1 = inout(reg) a_second => _, below = in(reg) below,
            ),
            (1, 2) => multiplied!(
                a, b, steps, out,
                ["tileloadd tmm0, [{o} + {s}*1]" "tileloadd tmm1, [{o} + {s}*1 + 64]"],
                ["tilezero tmm0" "tilezero tmm1"],
                ["tileloadd tmm4, [{a} + {row}*1]" "tileloadd tmm6, [{b} + {row}*1]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm7, [{b1} + {row}*1]" "tdpbf16ps tmm1, tmm4, tmm7" "add {b1}, 1024"],
                ["tilestored [{o} + {s}*1], tmm0" "tilestored [{o} + {s}*1 + 64], tmm1"],
                b1 = inout(reg) b_second => _,
            ),
            (1, 1) => multiplied!(
                a, b, steps, out,
                ["tileloadd tmm0, [{o} + {s}*1]"],
                ["tilezero tmm0"],
                ["tileloadd tmm4, [{a} + {row}*1]" "tileloadd tmm6, [{b} + {row}*1]" "tdpbf16ps tmm0, tmm4, tmm6"],
                ["tilestored [{o} + {s}*1], tmm0"],
            ),
            _ => unreachable!("one or two groups"),
        }
    }
}

/// Computes the sums of 32 rows in bf16 in their stored layout, with a multiple of 32 values each, with a group of columns. Prefetching
/// the next rows would make it slower, since the processor itself tracks sixteen rows.
///
/// # Safety
/// Tiles are in use.
pub(super) unsafe fn sums_of_rows(w: &[u8], b: &[Bf16Line], out: &mut [[f32; SIDE]; WIDTH]) {
    let line = w.len() / WIDTH;
    let steps = line / ROW;
    assert!(steps > 0 && w.len() == WIDTH * steps * ROW && b.len() == steps * SIDE, "incomplete blocks");
    let a = w.as_ptr();
    let out: *mut f32 = out.as_mut_ptr().cast();
    // SAFETY: rows, columns and sums are as long as just checked.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm2",
            "2:",
            "tileloadd tmm4, [{a} + {line}*1]", "tileloadd tmm6, [{b} + {row}*1]", "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a1} + {line}*1]", "tdpbf16ps tmm2, tmm5, tmm6",
            "add {a}, 64", "add {a1}, 64", "add {b}, 1024", "dec {steps}", "jnz 2b",
            "tilestored [{o} + {row}*1], tmm0", "tilestored [{below} + {row}*1], tmm2",
            a = inout(reg) a => _, a1 = inout(reg) a.wrapping_byte_add(SIDE * line) => _, line = in(reg) line,
            b = inout(reg) b.as_ptr() => _, row = in(reg) ROW, steps = inout(reg) steps => _,
            o = in(reg) out, below = in(reg) out.wrapping_add(SIDE * SIDE),
            out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, options(nostack),
        );
    }
}
