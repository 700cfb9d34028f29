export function instance(): Promise<{ renderSVGElement(graph: unknown, options?: object): SVGSVGElement; renderString(dot: string, options: { format: string; engine: string }): string }>;
