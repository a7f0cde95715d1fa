// SPDX-License-Identifier: MIT
//! Views of slices as C takes them. A list can mix dtypes, and nothing is converted.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use crate::macros::Raw;
use crate::{sys, Dtype, Host, Memory};

macro_rules! bit_patterns {
    ($($(#[$doc:meta])* $name:ident($bits:ty);)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
            #[repr(transparent)]
            pub struct $name(pub $bits);

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    let width = 2 + <$bits>::BITS as usize / 4;
                    write!(f, concat!(stringify!($name), "({:#0width$x})"), self.0, width = width)
                }
            }
        )*
    };
}

bit_patterns! {
    /// An IEEE binary16 number as its bits; `half::f16` has the same layout.
    ///
    /// For arithmetic use a crate such as `half`; the crate `gradscaler-half` views its slices without a
    /// copy. `scale_into` of [`Factor::ONE`](crate::Factor::ONE) casts a list.
    F16(u16);

    /// A bfloat16 number, the upper half of an f32, as its bits; `half::bf16` has the same layout.
    Bf16(u16);

    /// An fp8 number of 4 bits of exponent and 3 of mantissa as its bits: up to 448, with NaN and
    /// without Inf.
    ///
    /// A value that is too large becomes NaN; [`Options::clamp`](crate::Options::clamp) with a limit of 448
    /// saturates.
    F8E4M3FN(u8);

    /// An fp8 number of 5 bits of exponent and 2 of mantissa, the upper half of a binary16, as its
    /// bits.
    F8E5M2(u8);

    /// Cerebras' 16-bit float as its bits: 6 of exponent, 9 of mantissa, bias 42.
    Cb16(u16);
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// An element of a tensor: `f32`, `f64`, [`F16`], [`Bf16`], [`F8E4M3FN`], [`F8E5M2`], [`Cb16`], and
/// complex numbers as `[f32; 2]` and `[f64; 2]`: real and imaginary part, as in `num_complex`.
///
/// The results of complex tensors must be complex. A complex element counts once, by its larger part.
///
/// The trait is sealed: the library reads memory by the dtype, so a wrong dtype would be unsound.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The dtype in C.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($element:ty: $dtype:ident,)*) => {
        $(
            impl sealed::Sealed for $element {}
            impl Element for $element {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )*
    };
}

elements! {
    f32: F32,
    f64: F64,
    F16: F16,
    Bf16: BF16,
    F8E4M3FN: F8_E4M3FN,
    F8E5M2: F8_E5M2,
    Cb16: CB16,
    [f32; 2]: COMPLEX64,
    [f64; 2]: COMPLEX128,
}

/// A slice of any dtype that a call reads. A list can have entries of several dtypes.
///
/// ```
/// use gradscaler::{Factor, Tensor, Want};
///
/// let (weights, bias) = (vec![1.0f32, -2.0], [f64::INFINITY]);
/// let report = Factor::ONE.measure(&[Tensor::new(&weights), Tensor::new(&bias)], Want::NONE)?;
/// assert_eq!(report.first_overflow(), Some((1, 0)));
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[repr(C)]
pub struct Tensor<'a, M: Memory = Host> {
    pub(crate) raw: sys::gsc_tensor,
    pub(crate) memory: M::Id, // nothing on the host
    elements: PhantomData<&'a [u8]>,
}

/// A slice of any dtype that a call writes, or changes in place.
///
/// ```
/// use gradscaler::{Factor, TensorMut, Want};
///
/// let mut layers = vec![vec![8.0f32; 3], vec![4.0f32; 2]];
/// let mut grads: Vec<TensorMut> = layers.iter_mut().map(|layer| TensorMut::new(layer)).collect();
/// let report = Factor::new(4.0)?.unscale(&mut grads, Want::NONE)?;
/// assert!(!report.overflow());
/// assert_eq!(layers, [vec![2.0; 3], vec![1.0; 2]]);
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[repr(transparent)]
pub struct TensorMut<'a, M: Memory = Host> {
    tensor: Tensor<'a, M>,
    elements: PhantomData<&'a mut [u8]>,
}

// SAFETY: they are slices of elements that are Send and Sync, borrowed as their lifetimes say.
unsafe impl<M: Memory> Send for Tensor<'_, M> {}
// SAFETY: likewise; also through a shared reference to a TensorMut they are only read.
unsafe impl<M: Memory> Sync for Tensor<'_, M> {}

impl<M: Memory> Clone for Tensor<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Memory> Copy for Tensor<'_, M> {}

impl<'a, M: Memory> Tensor<'a, M> {
    /// # Safety
    ///
    /// The memory holds `count` elements there, which nothing writes during 'a.
    pub(crate) unsafe fn at<T: Element>(memory: M::Id, data: *const c_void, count: usize) -> Self {
        Self {
            raw: sys::gsc_tensor {
                data: data as *mut _,
                count: count as u64,
                dtype: T::DTYPE.c(),
                flags: 0,
                reserved: [0; 2],
            },
            memory,
            elements: PhantomData,
        }
    }
}

impl<'a, M: Memory> TensorMut<'a, M> {
    /// # Safety
    ///
    /// Nothing else uses the elements of the tensor during 'a.
    pub(crate) unsafe fn of(tensor: Tensor<'a, M>) -> Self {
        Self {
            tensor,
            elements: PhantomData,
        }
    }

    /// Returns a list of writable tensors as a list to read.
    pub fn as_inputs<'s>(list: &'s [TensorMut<'_, M>]) -> &'s [Tensor<'s, M>] {
        // SAFETY: a TensorMut is a Tensor, and the borrow of the list outlives the result.
        unsafe { &*(list as *const [TensorMut<'_, M>] as *const [Tensor<'s, M>]) }
    }
}

impl<'a> Tensor<'a> {
    /// Makes a view of a slice.
    pub fn new<T: Element>(slice: &'a [T]) -> Self {
        // SAFETY: the slice is borrowed.
        unsafe { Self::at::<T>((), slice.as_ptr().cast(), slice.len()) }
    }
}

impl<'a> TensorMut<'a> {
    /// Makes a view of a slice.
    pub fn new<T: Element>(slice: &'a mut [T]) -> Self {
        // SAFETY: the slice is borrowed mutably.
        unsafe { Self::of(Tensor::at::<T>((), slice.as_mut_ptr().cast(), slice.len())) }
    }
}

impl<'a, T: Element> From<&'a [T]> for Tensor<'a> {
    fn from(slice: &'a [T]) -> Self {
        Self::new(slice)
    }
}

impl<'a, T: Element> From<&'a mut [T]> for TensorMut<'a> {
    fn from(slice: &'a mut [T]) -> Self {
        Self::new(slice)
    }
}

macro_rules! views {
    ($($view:ident: $($raw:ident).+;)*) => {
        $(
            impl<M: Memory> $view<'_, M> {
                /// Returns the number of elements.
                pub fn len(&self) -> usize {
                    self.$($raw).+.count as usize
                }

                /// Returns true if there is no element; a list can have such entries.
                pub fn is_empty(&self) -> bool {
                    self.len() == 0
                }

                /// Returns the dtype of the elements.
                pub fn dtype(&self) -> Dtype {
                    Dtype::of(self.$($raw).+.dtype)
                }
            }

            impl<M: Memory> fmt::Debug for $view<'_, M> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    let (dtype, len) = (self.dtype(), self.len());
                    write!(f, concat!(stringify!($view), "({:?}, {} elements)"), dtype, len)
                }
            }
        )*
    };
}

views! {
    Tensor: raw;
    TensorMut: tensor.raw;
}
