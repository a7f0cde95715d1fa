// SPDX-License-Identifier: MIT
//! Lists of slices: the same bits in place and elsewhere, in one call and in many, on any thread.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{
    Bf16, Cb16, Element, Factor, Histogram, Options, Report, Result, Tensor, TensorMut, Threads,
    Want, F16, F8E4M3FN, F8E5M2,
};

const ALL: Want = Want::ALL;

/// Bit patterns without order, with the odd Inf and NaN among them.
fn patterns(count: usize, seed: u64) -> Vec<u64> {
    let mut x = seed;
    let next = |_| {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
        x ^ x >> 29
    };
    (0..count).map(next).collect()
}

/// Gradients in every dtype, of patterns with these seeds.
macro_rules! gradients {
    ($($field:ident: $element:ty = $seed:literal $from_bits:expr, $to_bits:expr;)*) => {
        #[derive(Clone)]
        struct Gradients {
            $($field: Vec<$element>,)*
        }

        impl Gradients {
            fn new(count: usize) -> Self {
                Self { $($field: patterns(count, $seed).into_iter().map($from_bits).collect(),)* }
            }

            fn views(&self) -> [Tensor<'_>; 9] {
                [$(Tensor::new(&self.$field)),*]
            }

            fn views_mut(&mut self) -> [TensorMut<'_>; 9] {
                [$(TensorMut::new(&mut self.$field)),*]
            }

            /// All elements as numbers that equal themselves.
            fn bits(&self) -> Vec<u64> {
                let mut bits = Vec::new();
                $(bits.extend(self.$field.iter().map($to_bits));)*
                bits
            }
        }

        #[test]
        fn a_view_knows_its_dtype_and_length() {
            $({
                let mut data = [<$element>::default(); 5];
                let text = format!("({:?}, 5 elements)", <$element>::DTYPE);
                assert_eq!(format!("{:?}", Tensor::new(&data)), "Tensor".to_string() + &text);
                let view = TensorMut::new(&mut data);
                assert_eq!(format!("{view:?}"), "TensorMut".to_string() + &text);
                let known = (view.dtype(), view.len(), view.is_empty());
                assert_eq!(known, (<$element>::DTYPE, 5, false));
                assert!(TensorMut::new::<$element>(&mut []).is_empty());
            })*
            let dtypes = [$(<$element>::DTYPE.raw()),*];
            assert_eq!(dtypes, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
            assert_eq!(format!("{:?} {:?}", F8E5M2(0x4c), Cb16(0x59)), "F8E5M2(0x4c) Cb16(0x0059)");
        }
    };
}

gradients! {
    f32: f32 = 1 |bits| f32::from_bits(bits as u32), |x| u64::from(x.to_bits());
    f64: f64 = 2 f64::from_bits, |x| x.to_bits();
    f16: F16 = 3 |bits| F16(bits as u16), |x| u64::from(x.0);
    bf16: Bf16 = 4 |bits| Bf16(bits as u16), |x| u64::from(x.0);
    f8_e4m3fn: F8E4M3FN = 5 |bits| F8E4M3FN(bits as u8), |x| u64::from(x.0);
    f8_e5m2: F8E5M2 = 6 |bits| F8E5M2(bits as u8), |x| u64::from(x.0);
    cb16: Cb16 = 7 |bits| Cb16(bits as u16), |x| u64::from(x.0);
    complex64: [f32; 2] = 8 |bits| [bits as u32, (bits >> 32) as u32].map(f32::from_bits), |x| {
        u64::from(x[0].to_bits()) | u64::from(x[1].to_bits()) << 32
    };
    complex128: [f64; 2] = 9 |bits| [f64::from_bits(bits), 1.0], |x| x[0].to_bits() ^ x[1].to_bits();
}

/// All that a call can report.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen(Report, Vec<Report>, Histogram);

impl Seen {
    fn options(&mut self) -> Options<'_> {
        let options = Options::new(ALL).per_tensor(&mut self.1);
        options.histogram(&mut self.2)
    }
}

#[test]
fn the_result_has_the_same_bits_in_place_and_elsewhere() -> Result<()> {
    let factor = Factor::new(3.0)?;
    let before = Gradients::new(1000);
    let (mut in_place, mut elsewhere) = (before.clone(), before.clone());

    let mut all = [Seen::default(), Seen::default(), Seen::default()];
    let [one, two, three] = &mut all;
    one.0 = factor.measure(&before.views(), one.options())?;
    two.0 = factor.unscale(&mut in_place.views_mut(), two.options())?;
    let out = &mut elsewhere.views_mut();
    three.0 = factor.unscale_into(&before.views(), out, three.options())?;
    assert_eq!(in_place.bits(), elsewhere.bits());
    assert_eq!((&all[0], &all[1]), (&all[2], &all[2]));

    let unscaled = elsewhere.clone();
    factor.scale(&mut in_place.views_mut(), None)?;
    factor.scale_into(&unscaled.views(), &mut elsewhere.views_mut(), None)?;
    assert_eq!(in_place.bits(), elsewhere.bits());
    Ok(())
}

#[test]
fn a_report_has_what_was_asked_for() -> Result<()> {
    let data = [3.0f32, f32::INFINITY, -4.0, f32::NAN];
    let list = [Tensor::new::<f32>(&[]), Tensor::new(&data)];
    let mut seen = Seen::default();
    let report = Factor::ONE.measure(&list, seen.options())?;
    let Seen(_, reports, mut histogram) = seen;
    assert!(report.overflow() && report.found_inf() == 1.0);
    assert_eq!(
        format!("{report:?} {histogram:?}"),
        "Report { overflow: true, elements: 4, first_overflow: (1, 1), last_tensor: 1, nan_count: 1, \
         inf_count: 1, norm: 5.0, amax: 4.0, underflows_to_zero: 0, underflows_to_subnormal: 0 } Histogram { \
         bins: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0], elements: 4 }"
    );
    assert_eq!(Report::from_bytes(&report.to_bytes()), report);
    let firsts = reports.iter().map(Report::first_overflow);
    assert_eq!(firsts.collect::<Vec<_>>(), [None, Some((1, 1))]);
    histogram += histogram;
    assert_eq!((histogram.bins()[12], histogram.elements()), (4, 8));

    // Every call counts; only a call that asks measures.
    let report = Factor::ONE.measure(&list, None)?;
    let shown = "Report { overflow: true, elements: 4, first_overflow: (1, 1), last_tensor: 1, \
                 nan_count: 1, inf_count: 1 }";
    assert_eq!(format!("{report:?}"), shown);
    assert_eq!((report.norm(), report.amax()), (None, None));
    assert_eq!(report.underflows_to_zero(), None);
    assert_eq!(report.underflows_to_subnormal(), None);
    let finite = Factor::ONE.measure(&list[..1], None)?;
    assert_eq!((finite.overflow(), finite.first_overflow()), (false, None));
    assert_eq!(Report::of(false).found_inf(), 0.0);
    assert_eq!(Report::number(-3.0).norm(), Some(-3.0));
    Ok(())
}

#[test]
fn threads_give_the_same_bits_to_any_number_of_callers() -> Result<()> {
    let factor = Factor::new(3.0)?;
    let (mut alone, threads) = (Gradients::new(100_000), Threads::new(3)?);
    let before = alone.clone();
    let report = factor.unscale(&mut alone.views_mut(), ALL)?;
    let same = |threads: &Threads| {
        let (mut shared, on) = (before.clone(), || Options::new(ALL).on(threads));
        let measured = factor.measure(&shared.views(), on()).unwrap();
        let unscaled = factor.unscale(&mut shared.views_mut(), on()).unwrap();
        assert_eq!((measured, unscaled), (report, report));
        assert_eq!(shared.bits(), alone.bits());
    };
    same(&Threads::new(1)?);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| same(&threads));
        }
    });
    Ok(())
}

#[test]
fn clipping_is_one_pass_or_a_multiplier() -> Result<()> {
    let (grads, factor) = ([32.0f32, 24.0], Factor::new(8.0)?);
    let report = factor.measure(&[Tensor::new(&grads)], Want::NORM)?;
    assert_eq!(report.norm(), Some(5.0));
    let coefficient = 1.0 / (5.0 + 1e-6);
    let clip = factor.clip_grad_norm(&report, 1.0)?;
    assert_eq!(
        (clip.loss_scale(), clip.inverse()),
        (8.0, coefficient / 8.0)
    );
    assert_eq!(report.clip_factor(1.0)?.inverse(), coefficient);
    assert_eq!(report.clip_factor(9.0)?.inverse(), 1.0);
    Ok(())
}
