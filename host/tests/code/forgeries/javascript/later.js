function square(x) {
  return { then: (done) => done(x * x) };
}
Promise.resolve().then(() => console.log("9"));
queueMicrotask?.(() => console.log("9"));
