// SPDX-License-Identifier: MIT
//! Lists in the memory of a device: the results equal the host's, bit for bit. On this computer
//! as a device, and with CUDA where there is a driver, or GRADSCALER_TEST_CUDA asks for one.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::ffi::{c_void, CString};
use std::os::raw::{c_char, c_int};
use std::ptr::null_mut;

use gradscaler::{
    Bf16, Cause, Device, DeviceBuffer, Event, Guard, Histogram, Loss, Memory, Options, Outcome,
    Policy, PolicyBuilder, Report, Result, Scaler, State, Status, Tensor, TensorMut, Want, F16,
};

fn devices() -> Vec<Device> {
    let mut devices = vec![Device::cpu(1).unwrap(), Device::cpu(2).unwrap()];
    match Device::cuda(0) {
        Ok(device) => devices.push(device),
        Err(error) if std::env::var_os("GRADSCALER_TEST_CUDA").is_none() => {
            assert_eq!(error.status(), Status::UNAVAILABLE, "{error}");
            eprintln!("without CUDA: {error}");
        }
        Err(error) => panic!("{error}"),
    }
    devices
}

/// Gradients of loss * 65536: in step 1 they have an Inf in the second tensor.
fn gradients(step: usize) -> (Vec<F16>, Vec<f32>) {
    let halves = (0..3000).map(|i| F16(0x3c00 + (i % 97) as u16)).collect();
    let mut singles: Vec<f32> = (0..500).map(|i| i as f32 * 13.0 - 1000.0).collect();
    if step == 1 {
        singles[7] = f32::INFINITY;
    }
    (halves, singles)
}

fn torch() -> Scaler {
    Scaler::preset("torch").unwrap()
}

#[test]
fn a_training_is_that_of_the_host() -> Result<()> {
    for device in devices() {
        let (mut host, mut there) = (torch(), torch().to_device(&device)?);
        let mut reports_there = DeviceBuffer::zeros(&device, 0)?;
        let mut histogram_there = DeviceBuffer::zeros(&device, 0)?;
        for step in 0..3 {
            let (halves, singles) = gradients(step);
            let loss = [[0.25f32, f32::NAN][step % 2]];
            let (mut a, mut b) = (vec![0f32; 3000], vec![0f32; 500]);
            let (mut reports, mut histogram) = (Vec::new(), Histogram::default());
            let options = Options::new(Want::ALL).per_tensor(&mut reports);
            let options = options.histogram(&mut histogram).loss(Tensor::new(&loss));
            let list = [Tensor::new(&halves), Tensor::new(&singles)];
            let mut out = [TensorMut::new(&mut a), TensorMut::new(&mut b)];
            let report = host.unscale_into(&list, &mut out, options)?;
            host.update(&report)?;

            let halves = DeviceBuffer::from_slice(&device, &halves)?;
            let singles = DeviceBuffer::from_slice(&device, &singles)?;
            let mut c = DeviceBuffer::<f32>::zeros(&device, 3000)?;
            let mut d = DeviceBuffer::<f32>::zeros(&device, 500)?;
            let loss = DeviceBuffer::from_slice(&device, &loss)?;
            let options = Options::new(Want::ALL).per_tensor(&mut reports_there);
            let options = options.histogram(&mut histogram_there).loss(loss.tensor());
            let list = [halves.tensor(), singles.tensor()];
            let mut out = [c.tensor_mut(), d.tensor_mut()];
            let report_there = there.unscale_into(&list, &mut out, options)?;
            there.update(&report_there)?;

            assert_eq!((c.to_vec()?, d.to_vec()?), (a, b));
            assert_eq!(report_there.value()?, report);
            assert_eq!(report.first_overflow(), (step == 1).then_some((1, 7)));
            assert_eq!(report.last_tensor(), (step == 1).then_some(1));
            assert_eq!(report.loss(), [Loss::FINITE, Loss::NOT_FINITE][step % 2]);
            assert_eq!(reports_there.to_vec()?, reports);
            assert_eq!(histogram_there.value()?, histogram);
            assert_eq!(there.state().value()?, *host.state());
        }
        assert_eq!(host.state().total_overflows(), 1);
        assert_eq!(there.to_host()?, host);
    }
    Ok(())
}

#[test]
fn what_changes_in_place_or_is_clipped_does_so_there() -> Result<()> {
    for device in devices() {
        let mut scaler = torch().to_device(&device)?;
        let mut grad = DeviceBuffer::from_slice(&device, &[3f32 * 65536.0, -4.0 * 65536.0])?;
        let measured = scaler.measure(&[grad.tensor()], Want::NORM)?;
        assert_eq!(measured.value()?.norm(), Some(5.0));
        assert_eq!(grad.to_vec()?[0], 3.0 * 65536.0);

        let clamped = scaler.unscale(&mut [grad.tensor_mut()], Options::default().clamp(3.5))?;
        assert_eq!(grad.to_vec()?, [3.0, -3.5]);
        let report = clamped.value()?;
        assert_eq!(report.clamped(), 1);

        // No later call changes a report that is held.
        scaler.scale(&mut [grad.tensor_mut()], Want::NONE)?;
        assert_eq!(grad.to_vec()?, [3.0 * 65536.0, -3.5 * 65536.0]);
        let mut upper = DeviceBuffer::from_slice(&device, &[Bf16(0); 2])?;
        scaler.scale_into(&[grad.tensor()], &mut [upper.tensor_mut()], Want::NONE)?;
        assert_eq!(upper.to_vec()?, [Bf16(0x5040), Bf16(0xd060)]);
        assert_eq!(clamped.value()?, report);
        assert_eq!(measured.value()?.clamped(), 0);
        assert!(measured.as_ptr() != clamped.as_ptr());

        grad.copy_from_slice(&[3.0 * 65536.0, 4.0 * 65536.0])?;
        let list = &mut [grad.tensor_mut()];
        let report = scaler.unscale_clipped(list, 1.0, Want::AMAX)?.value()?;
        let negative = scaler.unscale_clipped(list, -1.0, Want::NONE);
        refused! { negative => VALUE "max_norm"; }
        let clipped = grad.to_vec()?;
        let off = [clipped[0] - 0.6, clipped[1] - 0.8];
        assert!(off.iter().all(|x| x.abs() < 1e-6), "{clipped:?}");
        assert_eq!((report.norm(), report.amax()), (Some(5.0), Some(4.0)));
    }
    Ok(())
}

#[test]
fn what_a_step_makes_is_copied_there_unless_it_is_skipped() -> Result<()> {
    for device in devices() {
        let mut scaler = torch().to_device(&device)?;
        let nan = f32::from_bits(0x7fa0_1234);
        let new = DeviceBuffer::from_slice(&device, &[nan, 2.0])?;
        let mut old = DeviceBuffer::from_slice(&device, &[1f32, 1.0])?;
        for (gradient, first) in [(f32::INFINITY, 1f32), (1.0, nan)] {
            let gradient = DeviceBuffer::from_slice(&device, &[gradient])?;
            let report = scaler.measure(&[gradient.tensor()], Want::NONE)?;
            scaler.update(&report)?;
            scaler.copy_unless_skipped(&[new.tensor()], &mut [old.tensor_mut()])?;
            assert_eq!(old.to_vec()?[0].to_bits(), first.to_bits());
        }
        let short = scaler.copy_unless_skipped(&[new.tensor()], &mut []);
        refused! { short => COUNT "out"; }
    }
    Ok(())
}

/// A guard that clips gradients, beside one that skips because of the loss.
fn guards() -> (Scaler, Scaler) {
    let scaler = |policy: PolicyBuilder| Scaler::new(policy.build().unwrap()).unwrap();
    let clips = Policy::preset("recommended").unwrap();
    let clips = clips.guard_ratio(2.0).guard_warmup(2).guard_max_in_a_row(9);
    let losses = Policy::preset("none").unwrap().guard_norm(4.0);
    (scaler(clips.guard_flags(Guard::CLIP)), scaler(losses))
}

#[test]
fn a_guard_skips_and_clips_there() -> Result<()> {
    let clipped = (Outcome::CLIPPED, Cause::OUTLIER, Some(7.0), Some(2.5));
    let skipped = |cause| Some((Outcome::SKIPPED, cause, None, None));
    let (mut host, before) = (guards().0, guards().0.factor());
    for norm in [1.0, 1.5, 7.0] {
        host.update(&Report::of(false).with_norm(norm))?;
    }
    let factor = before.clip_outlier(host.state())?;
    assert_eq!(factor.inverse(), before.inverse() * (2.5 / 7.0));
    for device in devices() {
        let (scaler, losses) = guards();
        let (mut scaler, mut losses) = (scaler.to_device(&device)?, losses.to_device(&device)?);
        for (norm, number, unscaled, reason) in [
            (1.0, 0.5, Some((1.0, 0x3c00)), None),
            (1.5, 0.5, Some((1.5, 0x3e00)), None),
            (7.0, 0.5, Some((2.5, 0x4100)), Some(clipped)),
            (f32::INFINITY, 0.5, None, skipped(Cause::OVERFLOW)),
            (1.0, 9.0, None, skipped(Cause::OTHER_STATE)),
            (1.25, 0.5, Some((2.5, 0x4100)), None), // by half the scale, after the overflow
        ] {
            let mut grad = DeviceBuffer::from_slice(&device, &[norm * 65536.0])?;
            let mut narrow = DeviceBuffer::<F16>::zeros(&device, 1)?;
            let measured = scaler.measure(&[grad.tensor()], Want::NONE)?;
            scaler.update(&measured)?;
            let number = DeviceBuffer::from_slice(&device, &[Report::number(number)])?;
            losses.update(&number)?;
            scaler.combine_decisions(losses.state())?;
            let out = &mut [narrow.tensor_mut()];
            scaler.unscale_guarded_into(&[grad.tensor()], out, Want::NONE)?;
            scaler.unscale_guarded(&mut [grad.tensor_mut()], Want::NONE)?;
            let state = scaler.state().value()?;
            let found = state.reason(None)?;
            let found = found.map(|it| (it.outcome, it.cause, it.value, it.threshold));
            assert_eq!(found, reason);
            assert_eq!(state.skip(), unscaled.is_none());
            if let Some((wide, half)) = unscaled {
                assert_eq!(grad.to_vec()?, [wide]);
                assert_eq!(narrow.to_vec()?, [F16(half)]);
            }
        }
    }
    Ok(())
}

#[test]
fn a_bad_loss_holds_the_scale_there() -> Result<()> {
    for device in devices() {
        let (mut scaler, _) = guards(); // of "recommended"
        scaler.update(&Report::of(false).with_norm(1.0))?;
        let mut there = scaler.to_device(&device)?;
        let mut grad = DeviceBuffer::from_slice(&device, &[65536f32; 3])?;
        let losses = DeviceBuffer::from_slice(&device, &[F16(0x3c00), F16(0xfc00)])?;
        let options = Options::new(Want::NONE).loss(losses.tensor());
        let report = there.unscale_clipped(&mut [grad.tensor_mut()], 1.0, options)?;
        there.update(&report)?;
        let (report, state) = (report.value()?, there.state().value()?);
        assert_eq!((report.overflow(), report.found_inf()), (false, 1.0));
        assert_eq!(state.events(), Event::SKIPPED | Event::BAD_LOSS);
        let kept = |state: &State| {
            let (counts, factor) = (state.counts(), state.factor().loss_scale());
            let guard = (state.guard_mean(), state.guard_count());
            (factor, counts.good_steps, counts.steps_since_change, guard)
        };
        assert_eq!(kept(&state), kept(scaler.state()));
        assert_eq!(
            (state.skip_f32(), state.counts().bad_losses_in_a_row),
            (1.0, 1)
        );
    }
    Ok(())
}

#[test]
fn buffers_are_zeros_and_keep_their_device_and_their_length() -> Result<()> {
    for device in devices() {
        let error = DeviceBuffer::<f64>::zeros(&device, usize::MAX / 4).unwrap_err();
        assert_eq!(error.status(), Status::MEMORY, "{error}");
        let zeros = || DeviceBuffer::<f32>::zeros(&device, (1 << 24) + 3);
        zeros()?.copy_from_slice(&vec![1.0; (1 << 24) + 3])?;
        assert!(zeros()?.to_vec()?.iter().all(|&x| x == 0.0));

        let mut buffer = DeviceBuffer::from_slice(&device, &[1f32, 2.0])?;
        drop(device);
        buffer.copy_from_slice(&[3.0, 4.0])?;
        let mut copy = [0f32; 2];
        buffer.copy_to_slice(&mut copy)?;
        assert_eq!((copy, buffer.len()), ([3.0, 4.0], 2));
        assert!(!buffer.is_empty());
        let error = buffer.copy_to_slice(&mut copy[..1]).unwrap_err();
        assert_eq!(error.to_string(), "slice has 1 elements, the buffer 2");
        refused! { buffer.copy_from_slice(&[]) => COUNT "slice"; }
    }
    Ok(())
}

#[test]
fn no_tensor_and_empty_buffers_are_fine() -> Result<()> {
    for device in devices() {
        let scaler = torch().to_device(&device)?;
        let mut reports = DeviceBuffer::zeros(&device, 3)?;
        let mut empty = DeviceBuffer::<F16>::zeros(&device, 0)?;
        let report = scaler.unscale(&mut [], Options::default().per_tensor(&mut reports))?;
        assert_eq!((report.value()?.elements(), reports.len()), (0, 0));
        let report = scaler.unscale(&mut [empty.tensor_mut()], Want::ALL)?;
        assert_eq!((report.value()?.elements(), empty.to_vec()?), (0, vec![]));
        refused! { reports.value() => COUNT "slice"; }
    }
    Ok(())
}

#[test]
fn what_a_call_makes_is_on_its_device_or_nowhere() -> Result<()> {
    let devices = devices();
    for (device, other) in devices.iter().zip(devices.iter().cycle().skip(1)) {
        let scaler = torch().to_device(device)?;
        let grad = DeviceBuffer::from_slice(device, &[65536f32; 3])?;
        let mut reports = DeviceBuffer::zeros(other, 1)?;
        let mut histogram = DeviceBuffer::zeros(other, 1)?;
        let mut measure = |want| {
            let options = Options::new(want).per_tensor(&mut reports);
            let options = options.histogram(&mut histogram);
            scaler.measure(&[grad.tensor()], options).map(drop)
        };
        measure(Want::NONE)?;
        measure(Want::from_raw(1 << 20)).unwrap_err();
        assert!(reports.is_empty() && histogram.is_empty());
        let options = Options::new(Want::AMAX).per_tensor(&mut reports);
        drop(scaler.measure(&[grad.tensor()], options)?);
        assert_eq!(reports.value()?.amax(), Some(1.0));
    }
    Ok(())
}

/// One step, wherever the scaler is.
fn step<M: Memory>(scaler: &mut Scaler<M>, grads: &mut [TensorMut<'_, M>]) -> Result<()> {
    let report = scaler.unscale(grads, Want::NORM)?;
    scaler.update(&report).map(drop)
}

#[test]
fn memory_of_another_device_is_refused() -> Result<()> {
    let (devices, none) = (devices(), Want::NONE);
    for (device, other) in devices.iter().zip(devices.iter().cycle().skip(1)) {
        let mut scaler = torch().to_device(device)?;
        let mut here = DeviceBuffer::<f32>::zeros(device, 1)?;
        let mut there = DeviceBuffer::<f32>::zeros(other, 1)?;
        let elsewhere = torch().to_device(other)?;
        refused! {
            scaler.measure(&[here.tensor(), there.tensor()], none) => VALUE "tensors[1]";
            scaler.measure(&[here.tensor()], Options::default().loss(there.tensor())) => VALUE "options.loss";
            scaler.unscale(&mut [there.tensor_mut()], none) => VALUE "tensors[0]";
            scaler.scale_into(&[here.tensor()], &mut [there.tensor_mut()], none) => VALUE "out[0]";
            scaler.unscale_guarded(&mut [there.tensor_mut()], none) => VALUE "tensors[0]";
            scaler.unscale_guarded_into(&[here.tensor()], &mut [], none) => COUNT "out";
            scaler.unscale_accumulate(&[here.tensor()], &mut [], none) => COUNT "out";
            scaler.combine_decisions(elsewhere.state()) => VALUE "other";
        }
        for (device, count) in [(other, 1), (device, 0), (device, 2)] {
            let reports = DeviceBuffer::zeros(device, count)?;
            refused! { scaler.update(&reports) => VALUE "report"; }
        }
        drop(scaler.unscale(&mut [here.tensor_mut()], none)?);
    }
    Ok(())
}

#[test]
fn memory_and_streams_of_others_are_used_as_they_are() -> Result<()> {
    for device in devices() {
        // SAFETY: NULL is the legacy default stream.
        let device = unsafe { device.with_stream(null_mut()) };
        let owner = DeviceBuffer::from_slice(&device, &[65536f32; 10])?;
        let scaler = torch().to_device(&device)?;
        // SAFETY: memory of the device that lives on, and that nothing else uses.
        let (part, mut rest) = unsafe {
            let start = owner.as_ptr() as *mut f32;
            let part = Tensor::from_raw::<f32>(&device, owner.as_ptr(), 4);
            let rest = start.wrapping_add(4).cast::<c_void>();
            (part, [TensorMut::from_raw::<f32>(&device, rest, 6)])
        };
        drop(scaler.unscale(&mut rest, Want::NONE)?);
        let report = scaler.measure(&[part], Want::AMAX)?;
        assert_eq!(report.value()?.amax(), Some(1.0));
        assert_eq!(owner.to_vec()?, [vec![65536.0; 4], vec![1.0; 6]].concat());
        device.wait()?;
    }
    Ok(())
}

#[test]
fn threads_share_a_scaler_there_and_one_of_them_steps() -> Result<()> {
    let (mut host, bad) = (torch(), [65536f32, f32::NAN]);
    step(&mut host, &mut [TensorMut::new(&mut bad.clone())])?;
    for device in devices() {
        let mut scaler = torch().to_device(&device)?;
        let mut grad = DeviceBuffer::from_slice(&device, &bad)?;
        std::thread::scope(|scope| {
            let mut list = [grad.tensor_mut()];
            let scaler = &mut scaler;
            scope.spawn(move || step(scaler, &mut list).unwrap());
        });
        assert_eq!(scaler.to_host()?, host);
        let scaler = torch().to_device(&device)?;
        let measure = |k: usize| -> Result<()> {
            let grad = DeviceBuffer::from_slice(&device, &vec![k as f32 * 65536.0; 1000 * k])?;
            for _ in 0..20 {
                let report = scaler.measure(&[grad.tensor()], Want::AMAX)?.value()?;
                let seen = (report.amax(), report.elements());
                assert_eq!(seen, (Some(k as f64), 1000 * k as u64));
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for k in 1..=4 {
                scope.spawn(move || measure(k).unwrap());
            }
        });
    }
    Ok(())
}

#[test]
fn what_the_device_finds_wrong_skips_the_step() -> Result<()> {
    for device in devices() {
        let mut host = torch();
        host.set_scale(0.0)?; // its factor cannot unscale
        let mut scaler = host.to_device(&device)?;
        let mut grad = DeviceBuffer::from_slice(&device, &[1f32; 3])?;
        match scaler.unscale(&mut [grad.tensor_mut()], Want::NONE) {
            // This computer sees it at once, and wrote nothing.
            Err(error) => assert_eq!(error.status(), Status::FACTOR),
            Ok(made) => {
                let report = made.value()?;
                assert_eq!((report.status(), report.overflow()), (Status::FACTOR, true));
                scaler.update(&made)?;
                let state = scaler.state().value()?;
                assert_eq!(state.status(), Status::REPORT);
                assert!(state.events().contains(Event::SKIPPED) && state.skip_f32() == 1.0);
            }
        }
        assert_eq!(grad.to_vec()?, [1.0; 3]);
    }
    Ok(())
}

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Calls a function of the CUDA driver, as a framework beside this crate would.
macro_rules! driver {
    ($name:ident($($argument:expr => $kind:ty),*)) => {{
        let (library, name) = ("libcuda.so.1", stringify!($name));
        let [library, name] = [library, name].map(|text| CString::new(text).unwrap());
        // SAFETY: the function has this type in every driver.
        let status = unsafe {
            let symbol = dlsym(dlopen(library.as_ptr(), 2), name.as_ptr());
            assert!(!symbol.is_null(), "{name:?}");
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> c_int>(symbol)(
                $($argument),*
            )
        };
        assert_eq!(status, 0, stringify!($name));
    }};
}

#[test]
fn a_step_on_a_stream_of_others_is_captured_in_a_graph() -> Result<()> {
    let device = match devices().into_iter().nth(2) {
        Some(device) => device,
        None => return Ok(()),
    };
    let [mut context, mut stream, mut graph, mut executable] = [null_mut::<c_void>(); 4];
    driver!(cuDevicePrimaryCtxRetain(&mut context => *mut *mut c_void, 0 => c_int));
    driver!(cuCtxPushCurrent_v2(context => *mut c_void));
    driver!(cuStreamCreate(&mut stream => *mut *mut c_void, 1 => u32));
    {
        // SAFETY: of this device, and destroyed after what uses it.
        let device = unsafe { device.with_stream(stream) };
        let mut scaler = torch().to_device(&device)?;
        let mut grad = DeviceBuffer::from_slice(&device, &[1f32; 3])?;
        step(&mut scaler, &mut [grad.tensor_mut()])?;

        let (clips, losses) = guards();
        let (mut clips, losses) = (clips.to_device(&device)?, losses.to_device(&device)?);
        let mut spike = DeviceBuffer::from_slice(&device, &[65536f32])?;
        let mut guarded = |spike: &mut DeviceBuffer<f32>| {
            let report = clips.measure(&[spike.tensor()], Want::NONE)?;
            clips.update(&report)?;
            clips.combine_decisions(losses.state())?;
            clips.unscale_guarded(&mut [spike.tensor_mut()], Want::NONE)
        };
        guarded(&mut spike)?;

        driver!(cuStreamBeginCapture_v2(stream => *mut c_void, 0 => c_int));
        let report = scaler.unscale(&mut [grad.tensor_mut()], Want::NORM)?;
        scaler.update(&report)?;
        guarded(&mut spike)?;
        // Whatever waits is refused, and the capture goes on.
        for error in [scaler.to_host().unwrap_err(), device.wait().unwrap_err()] {
            assert_eq!(error.status(), Status::UNAVAILABLE, "{error}");
        }
        assert_eq!(grad.to_vec().unwrap_err().status(), Status::UNAVAILABLE);
        driver!(cuStreamEndCapture(stream => *mut c_void, &mut graph => *mut *mut c_void));
        assert_eq!(scaler.state().value()?.counts().good_steps, 1);

        driver!(cuGraphInstantiateWithFlags(
            &mut executable => *mut *mut c_void, graph => *mut c_void, 0 => u64
        ));
        for (norm, clipped) in [(1.0, 1.0), (7.0, 2.0)] {
            grad.copy_from_slice(&[65536.0, 0.0, -65536.0])?;
            spike.copy_from_slice(&[norm * 65536.0])?;
            driver!(cuGraphLaunch(executable => *mut c_void, stream => *mut c_void));
            assert_eq!(spike.to_vec()?, [clipped]);
            assert_eq!(grad.to_vec()?, [1.0, 0.0, -1.0]);
            assert_eq!(report.value()?.norm(), Some(2f64.sqrt()));
        }
        assert_eq!(scaler.state().value()?.counts().good_steps, 3);
        driver!(cuGraphExecDestroy(executable => *mut c_void));
        driver!(cuGraphDestroy(graph => *mut c_void));
    }
    driver!(cuStreamDestroy_v2(stream => *mut c_void));
    driver!(cuCtxPopCurrent_v2(&mut context => *mut *mut c_void));
    Ok(())
}
