// Rules of the page's code. How it looks is prettier's; what its values are, TypeScript's.

import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["**/vendor/", "**/node_modules/", "**/.venv/"] },
  {
    ...js.configs.recommended,
    files: ["src/garrison/web/static/*.js", "tests/browser/*.js"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      ...js.configs.recommended.rules,
      complexity: ["error", 15],
      eqeqeq: "error",
      "max-len": ["error", { code: 140 }],
      "no-var": "error",
      "prefer-const": "error",
    },
  },
  { files: ["**/*_worker.js"], languageOptions: { globals: globals.worker } },
];
