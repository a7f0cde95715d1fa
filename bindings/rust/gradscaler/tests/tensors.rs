// SPDX-License-Identifier: MIT
//! Lists of slices: the same bits in place and elsewhere, in one call and in many, on any thread.
#![allow(missing_docs, clippy::unwrap_used)]

use gradscaler::{
    Bf16, Cb16, Dtype, Element, Factor, Histogram, MergeKind, Options, Report, Scaler, Tensor,
    TensorMut, Threads, Want, F16, F8E4M3FN, F8E5M2,
};

const ALL: Want = Want::ALL;

/// Bit patterns without order, with the odd Inf and NaN among them.
fn patterns(count: usize, seed: u64) -> Vec<u64> {
    let mut x = seed;
    let next = |_| {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        x ^ x >> 29
    };
    (0..count).map(next).collect()
}

/// Gradients in every dtype.
#[derive(Clone)]
struct Gradients {
    f32: Vec<f32>,
    f64: Vec<f64>,
    f16: Vec<F16>,
    bf16: Vec<Bf16>,
    f8_e4m3fn: Vec<F8E4M3FN>,
    f8_e5m2: Vec<F8E5M2>,
    cb16: Vec<Cb16>,
    complex64: Vec<[f32; 2]>,
    complex128: Vec<[f64; 2]>,
}

impl Gradients {
    fn new(count: usize) -> Self {
        fn of<T>(count: usize, seed: u64, from_bits: impl Fn(u64) -> T) -> Vec<T> {
            patterns(count, seed).into_iter().map(from_bits).collect()
        }
        let f32 = |bits: u64| f32::from_bits(bits as u32);
        Self {
            f32: of(count, 1, f32),
            f64: of(count, 2, f64::from_bits),
            f16: of(count, 3, |bits| F16(bits as u16)),
            bf16: of(count, 4, |bits| Bf16(bits as u16)),
            f8_e4m3fn: of(count, 5, |bits| F8E4M3FN(bits as u8)),
            f8_e5m2: of(count, 6, |bits| F8E5M2(bits as u8)),
            cb16: of(count, 7, |bits| Cb16(bits as u16)),
            complex64: of(count, 8, |bits| [f32(bits), f32(bits >> 32)]),
            complex128: of(count, 9, |bits| [f64::from_bits(bits), 1.0]),
        }
    }

    fn views(&self) -> [Tensor<'_>; 9] {
        [
            Tensor::new(&self.f32),
            Tensor::new(&self.f64),
            Tensor::new(&self.f16),
            Tensor::new(&self.bf16),
            Tensor::new(&self.f8_e4m3fn),
            Tensor::new(&self.f8_e5m2),
            Tensor::new(&self.cb16),
            Tensor::new(&self.complex64),
            Tensor::new(&self.complex128),
        ]
    }

    fn views_mut(&mut self) -> [TensorMut<'_>; 9] {
        [
            TensorMut::new(&mut self.f32),
            TensorMut::new(&mut self.f64),
            TensorMut::new(&mut self.f16),
            TensorMut::new(&mut self.bf16),
            TensorMut::new(&mut self.f8_e4m3fn),
            TensorMut::new(&mut self.f8_e5m2),
            TensorMut::new(&mut self.cb16),
            TensorMut::new(&mut self.complex64),
            TensorMut::new(&mut self.complex128),
        ]
    }

    /// All elements as numbers that equal themselves.
    fn bits(&self) -> Vec<u64> {
        let f32 = |x: &f32| u64::from(x.to_bits());
        let mut bits: Vec<u64> = self.f32.iter().map(f32).collect();
        bits.extend(self.f64.iter().map(|x| x.to_bits()));
        bits.extend(self.f16.iter().map(|x| u64::from(x.0)));
        bits.extend(self.bf16.iter().map(|x| u64::from(x.0)));
        bits.extend(self.f8_e4m3fn.iter().map(|x| u64::from(x.0)));
        bits.extend(self.f8_e5m2.iter().map(|x| u64::from(x.0)));
        bits.extend(self.cb16.iter().map(|x| u64::from(x.0)));
        bits.extend(self.complex64.iter().flatten().map(f32));
        bits.extend(self.complex128.iter().flatten().map(|x| x.to_bits()));
        bits
    }
}

/// All that a call can report.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen(Report, Vec<Report>, Histogram);

impl Seen {
    fn options(&mut self) -> Options<'_> {
        Options::new(ALL)
            .per_tensor(&mut self.1)
            .histogram(&mut self.2)
    }
}

#[test]
fn the_result_has_the_same_bits_in_place_and_elsewhere() {
    for scale in [1.0, 3.0, 65536.0, 1e-30, 1e30] {
        let factor = Factor::new(scale).unwrap();
        let before = Gradients::new(1000);
        let (mut in_place, mut elsewhere) = (before.clone(), Gradients::new(1000));

        let mut all = [Seen::default(), Seen::default(), Seen::default()];
        let [one, two, three] = &mut all;
        one.0 = factor.measure(&before.views(), one.options()).unwrap();
        let in_place_views = &mut in_place.views_mut();
        two.0 = factor.unscale(in_place_views, two.options()).unwrap();
        three.0 = factor
            .unscale_into(&before.views(), &mut elsewhere.views_mut(), three.options())
            .unwrap();
        assert_eq!(in_place.bits(), elsewhere.bits());
        assert_eq!((&all[0], &all[1]), (&all[2], &all[2]));

        factor.scale(&mut in_place.views_mut(), None).unwrap();
        let unscaled = elsewhere.clone();
        factor
            .scale_into(&unscaled.views(), &mut elsewhere.views_mut(), None)
            .unwrap();
        assert_eq!(in_place.bits(), elsewhere.bits());
    }
}

#[test]
fn one_call_reports_what_many_do() {
    let gradients = Gradients::new(1000);
    let factor = Factor::new(16.0).unwrap();
    let mut together = Seen::default();
    together.0 = factor
        .measure(&gradients.views(), together.options())
        .unwrap();
    let mut histogram = Histogram::default();
    let alone = gradients.views().map(|view| {
        let mut one = Seen::default();
        one.0 = factor.measure(&[view], one.options()).unwrap();
        histogram += one.2;
        one.0
    });
    // In order, the sums have the same bits, too.
    let merged = Report::merge(&alone, MergeKind::SHARDS, None).unwrap();
    let whole = Report::merge(&[together.0], MergeKind::SHARDS, None).unwrap();
    assert_eq!(merged, whole);
    assert_eq!(histogram, together.2);
    assert_eq!((merged.elements(), histogram.elements()), (9000, 9000));
    // So has the same pass.
    assert_eq!(together.1.len(), 9);
    assert_eq!(
        Report::merge(&together.1, MergeKind::SHARDS, None).unwrap(),
        whole
    );
    for (number, (each, alone)) in together.1.iter().zip(alone).enumerate() {
        assert_eq!((each.norm(), each.amax()), (alone.norm(), alone.amax()));
        let first = alone.first_overflow().map(|(_, element)| (number, element));
        assert_eq!(
            (each.first_overflow(), each.overflow()),
            (first, alone.overflow())
        );
    }
}

#[test]
fn reports_of_what_is_added_have_no_norm() {
    let grads = [[3f32], [4.0], [f32::NAN]];
    let reports = grads.map(|grad| Factor::ONE.measure(&[Tensor::new(&grad)], ALL).unwrap());
    let sum = Report::merge(&reports[..2], MergeKind::ADDENDS, None).unwrap();
    assert_eq!(
        (sum.norm(), sum.amax(), sum.underflows_to_zero()),
        (None, None, Some(0))
    );
    assert_eq!((sum.elements(), sum.overflow()), (2, false));
    assert!(Report::merge(&reports, MergeKind::ADDENDS, None)
        .unwrap()
        .overflow());
    let none = Report::merge(&[], MergeKind::SHARDS, None).unwrap();
    assert_eq!((none.norm(), none.overflow()), (Some(0.0), false));
}

#[test]
fn a_report_survives_as_bytes() {
    let report = Factor::ONE
        .measure(&Gradients::new(100).views(), ALL)
        .unwrap();
    assert_eq!(Report::from_bytes(&report.to_bytes()), report);
}

#[test]
fn a_report_has_what_was_asked_for() {
    let data = [3.0f32, f32::INFINITY, -4.0, f32::NAN];
    let list = [Tensor::new::<f32>(&[]), Tensor::new(&data)];
    let mut histogram = Histogram::default();
    let report = Factor::ONE
        .measure(&list, Options::new(ALL).histogram(&mut histogram))
        .unwrap();
    assert!(report.overflow() && report.found_inf() == 1.0);
    assert_eq!(report.first_overflow(), Some((1, 1)));
    assert_eq!((report.nan_count(), report.inf_count()), (1, 1));
    assert_eq!((report.norm(), report.amax()), (Some(5.0), Some(4.0)));
    assert_eq!(
        (
            report.underflows_to_zero(),
            report.underflows_to_subnormal()
        ),
        (Some(0), Some(0))
    );
    assert_eq!(
        format!("{report:?} {histogram:?}"),
        "Report { overflow: true, elements: 4, first_overflow: (1, 1), nan_count: 1, inf_count: 1, \
         norm: 5.0, amax: 4.0, underflows_to_zero: 0, underflows_to_subnormal: 0 } Histogram { \
         bins: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0], elements: 4 }"
    );

    let report = Factor::ONE.measure(&[Tensor::new(&data)], None).unwrap();
    assert!(report.overflow());
    assert_eq!(
        (
            report.first_overflow(),
            report.nan_count(),
            report.inf_count()
        ),
        (Some((0, 1)), 1, 1)
    );
    assert_eq!(
        (report.norm(), report.amax(), report.underflows_to_zero()),
        (None, None, None)
    );
    assert_eq!(report.underflows_to_subnormal(), None);
    let finite = Factor::ONE
        .measure(&[Tensor::new(&data[..1])], None)
        .unwrap();
    assert_eq!((finite.overflow(), finite.first_overflow()), (false, None));
}

#[test]
fn no_tensor_and_empty_tensors_are_fine() {
    let report = Factor::ONE.unscale(&mut [], ALL).unwrap();
    assert!(!report.overflow() && report.elements() == 0);
    let mut empty: [TensorMut; 2] = [
        TensorMut::new::<F16>(&mut []),
        TensorMut::new::<f64>(&mut []),
    ];
    assert!(empty[0].is_empty());
    Factor::ONE.scale(&mut empty, Want::NONE).unwrap();
    assert_eq!(
        Factor::ONE
            .measure(TensorMut::as_inputs(&empty), ALL)
            .unwrap()
            .elements(),
        0
    );
}

#[test]
fn a_view_knows_its_dtype_and_length() {
    fn of<T: Element + Default>() -> (Dtype, usize) {
        let mut data = [T::default(); 5];
        let view = TensorMut::new(&mut data);
        assert_eq!(
            format!("{view:?}"),
            format!("TensorMut({:?}, 5 elements)", T::DTYPE)
        );
        (view.dtype(), view.len())
    }
    let views = [
        of::<f32>(),
        of::<f64>(),
        of::<F16>(),
        of::<Bf16>(),
        of::<F8E4M3FN>(),
        of::<F8E5M2>(),
        of::<Cb16>(),
        of::<[f32; 2]>(),
        of::<[f64; 2]>(),
    ];
    let dtypes = [
        Dtype::F32,
        Dtype::F64,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F8_E4M3FN,
        Dtype::F8_E5M2,
        Dtype::CB16,
        Dtype::COMPLEX64,
        Dtype::COMPLEX128,
    ];
    assert_eq!(views, dtypes.map(|dtype| (dtype, 5)));
}

#[test]
fn a_factor_of_one_casts() {
    let (wide, mut half, mut upper) = ([1.0f32, -2.0, 65520.0], [F16(0); 3], [Bf16(0); 3]);
    let inputs = [Tensor::new(&wide), Tensor::new(&wide)];
    let mut out = [TensorMut::new(&mut half), TensorMut::new(&mut upper)];
    let mut reports = Vec::new();
    let options = Options::new(Want::AMAX).per_tensor(&mut reports);
    Factor::ONE.scale_into(&inputs, &mut out, options).unwrap();
    // Which of them overflowed, and where.
    let first = reports.iter().map(Report::first_overflow);
    assert_eq!(first.collect::<Vec<_>>(), [Some((0, 2)), None]);
    assert_eq!(
        (reports[0].amax(), reports[1].amax()),
        (Some(65520.0), Some(65520.0))
    );
    assert_eq!(half, [F16(0x3c00), F16(0xc000), F16(0x7c00)]);
    assert_eq!(upper, [Bf16(0x3f80), Bf16(0xc000), Bf16(0x4780)]);
}

#[test]
fn narrow_types_are_what_their_bits_say() {
    let six = [6.0f32];
    let (mut e4m3fn, mut e5m2, mut cb16) = ([F8E4M3FN(0)], [F8E5M2(0)], [Cb16(0)]);
    let mut out = [
        TensorMut::new(&mut e4m3fn),
        TensorMut::new(&mut e5m2),
        TensorMut::new(&mut cb16),
    ];
    Factor::ONE
        .scale_into(&[Tensor::new(&six); 3], &mut out, None)
        .unwrap();
    assert_eq!(
        (e4m3fn, e5m2, cb16),
        ([F8E4M3FN(0x4c)], [F8E5M2(0x46)], [Cb16(0x5900)])
    );
    assert_eq!(
        format!("{e4m3fn:?} {cb16:?}"),
        "[F8E4M3FN(0x4c)] [Cb16(0x5900)]"
    );
}

#[test]
fn a_complex_element_counts_once_as_its_larger_part() {
    let mut grads = [[6.0f32, -8.0], [f32::NAN, f32::INFINITY], [0.0, 2.0]];
    let mut histogram = Histogram::default();
    let options = Options::new(ALL).histogram(&mut histogram);
    let report = Factor::new(2.0)
        .unwrap()
        .unscale(&mut [TensorMut::new(&mut grads)], options)
        .unwrap();
    assert_eq!((grads[0], grads[2]), ([3.0, -4.0], [0.0, 1.0]));
    assert_eq!(
        (report.elements(), report.first_overflow()),
        (3, Some((0, 1)))
    );
    assert_eq!((report.nan_count(), report.inf_count()), (1, 0));
    assert_eq!(
        (report.norm(), report.amax()),
        (Some(26f64.sqrt()), Some(4.0))
    );
    assert_eq!(histogram.elements(), 3);
}

#[test]
fn clipping_by_value_clamps_in_place_and_elsewhere_and_tells_what_overflowed() {
    let scaler = Scaler::preset("static").unwrap();
    let scale = scaler.loss_scale() as f32;
    let scaled = [scale, -3.0 * scale, f32::INFINITY];
    let (mut in_place, mut elsewhere) = (scaled, [0f64; 3]);
    let clamp = || Options::new(Want::AMAX).clamp(2.0);
    let report = scaler
        .unscale(&mut [TensorMut::new(&mut in_place)], clamp())
        .unwrap();
    let (list, mut out) = ([Tensor::new(&scaled)], [TensorMut::new(&mut elsewhere)]);
    let other = scaler.unscale_into(&list, &mut out, clamp()).unwrap();
    assert_eq!((in_place, elsewhere), ([1.0, -2.0, 2.0], [1.0, -2.0, 2.0]));
    assert_eq!(report, other);
    assert_eq!((report.overflow(), report.amax()), (true, Some(3.0)));
    assert_eq!(report.clamped(), 2);
    let mut narrow = [F8E4M3FN(0)];
    let out = &mut [TensorMut::new(&mut narrow)];
    let options = Options::default().clamp(448.0);
    Factor::new(1e4)
        .unwrap()
        .scale_into(&[Tensor::new(&[1f32])], out, options)
        .unwrap();
    assert_eq!(narrow, [F8E4M3FN(0x7e)]);
}

#[test]
fn a_micro_batch_is_added_as_a_whole_or_not_at_all() {
    let mut scaler = Scaler::preset("torch").unwrap();
    scaler.set_scale(2.0).unwrap();
    let (mut weight, mut bias) = ([1f32; 3], [1f64; 2]);
    for (last, bad) in [(F16(0x4000), false), (F16(0x7c00), true)] {
        let (a, b) = ([F16(0x4000); 3], [F16(0x4000), last]);
        let mut sums = [TensorMut::new(&mut weight), TensorMut::new(&mut bias)];
        let report = scaler
            .unscale_accumulate(&[Tensor::new(&a), Tensor::new(&b)], &mut sums, Want::NONE)
            .unwrap();
        assert_eq!((report.overflow(), report.elements()), (bad, 5));
        assert_eq!((weight, bias), ([2.0; 3], [2.0; 2]));
    }
}

#[test]
fn threads_give_the_same_bits_to_any_number_of_callers() {
    let factor = Factor::new(3.0).unwrap();
    let (mut alone, threads) = (Gradients::new(100_000), Threads::new(3).unwrap());
    let before = alone.clone();
    let report = factor.unscale(&mut alone.views_mut(), ALL).unwrap();
    let same = |mut shared: Gradients, threads: &Threads| {
        let on = || Options::new(ALL).on(threads);
        let measured = factor.measure(&shared.views(), on()).unwrap();
        assert_eq!(
            factor.unscale(&mut shared.views_mut(), on()).unwrap(),
            measured
        );
        assert_eq!(measured, report);
        assert_eq!(shared.bits(), alone.bits());
    };
    same(before.clone(), &Threads::new(1).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| same(before.clone(), &threads));
        }
    });
}

#[test]
fn clipping_is_one_pass_or_a_multiplier() {
    let mut grads = [30.0f32, 40.0];
    let factor = Factor::new(10.0).unwrap();
    let report = factor.measure(&[Tensor::new(&grads)], Want::NORM).unwrap();
    assert_eq!(report.norm(), Some(5.0));
    let clip = factor.clip_grad_norm(&report, 1.0).unwrap();
    let _ = clip
        .unscale(&mut [TensorMut::new(&mut grads)], Want::NONE)
        .unwrap();
    assert!(
        (grads[0] - 0.6).abs() < 1e-6 && (grads[1] - 0.8).abs() < 1e-6,
        "{grads:?}"
    );
    assert_eq!(
        report.clip_factor(1.0).unwrap().inverse(),
        1.0 / (5.0 + 1e-6)
    );
    assert_eq!(report.clip_factor(9.0).unwrap().inverse(), 1.0);
}

#[test]
fn late_gradients_keep_the_factor_of_their_loss() {
    let mut scaler = Scaler::preset("torch").unwrap();
    let late = scaler.factor();
    scaler.update(&Report::of(true)).unwrap();
    assert_eq!((late.loss_scale(), scaler.loss_scale()), (65536.0, 32768.0));
    assert_eq!((late.generation(), scaler.factor().generation()), (1, 2));
    let mut grads = [65536.0f64];
    let options = Options::default().policy(scaler.policy());
    let report = late
        .unscale(&mut [TensorMut::new(&mut grads)], options)
        .unwrap();
    assert_eq!((grads, report.generation()), ([1.0], 1));
    assert_eq!(Factor::new(2.0).unwrap().generation(), 0);
    assert_eq!(late.multiply(4.0).unwrap().inverse(), 1.0 / (4.0 * 65536.0));
}

#[test]
fn threads_share_a_scaler_and_move_views() {
    let scaler = Scaler::preset("recommended").unwrap();
    let mut shards: Vec<Vec<f32>> = (0..8).map(|_| vec![65536.0; 10_000]).collect();
    let reports: Vec<Report> = std::thread::scope(|threads| {
        let views = shards.iter_mut().map(|shard| TensorMut::new(shard));
        let running: Vec<_> = views
            .map(|view| threads.spawn(|| scaler.unscale(&mut [view], Want::NORM).unwrap()))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(shards.iter().flatten().all(|&x| x == 1.0));
    let merged = Report::merge(&reports, MergeKind::SHARDS, Some(scaler.policy())).unwrap();
    assert_eq!(
        (merged.norm(), merged.elements()),
        (Some(80_000f64.sqrt()), 80_000)
    );
}
