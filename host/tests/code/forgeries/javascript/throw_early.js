throw new Error("passed");
