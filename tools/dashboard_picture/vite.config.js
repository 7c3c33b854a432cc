import { defineConfig } from "vite";

// One script, so that the page works from a file.
export default defineConfig({
  define: { "process.env.NODE_ENV": '"production"', "process.env": "{}", global: "globalThis" },
  build: { lib: { entry: "main.jsx", formats: ["iife"], name: "panels", fileName: () => "panels.js" } },
});
