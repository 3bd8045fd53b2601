// AssemblyScript can't give an export a name that is not an identifier. This gives them the
// contract's: plugin_describe becomes rlhost:plugin/plugin@1.0.0#describe, and `after` is what the
// host calls when it has read an answer.
const INTERFACES = ["plugin", "reward", "algorithm", "estimator"];

export default class {
  afterCompile(module) {
    const functions = new Map();
    for (let i = 0; i < module.getNumExports(); i++) {
      const { name, value } = this.binaryen.getExportInfo(module.getExportByIndex(i));
      functions.set(name, value);
    }
    for (const [name, value] of functions) {
      const [face, ...rest] = name.split("_");
      if (!INTERFACES.includes(face)) continue;
      const full = `rlhost:plugin/${face}@1.0.0#${rest.join("-")}`;
      module.removeExport(name);
      module.addFunctionExport(value, full);
      module.addFunctionExport(functions.get("after"), `cabi_post_${full}`);
    }
    module.removeExport("after");
  }
}
