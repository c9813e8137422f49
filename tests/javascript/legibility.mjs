// Contrast rules of WCAG 2.2, evaluated inside the page: 1.4.3 (text) and 1.4.11 (lines that carry meaning).

/** All texts and plot lines with too little contrast. */
export function lowContrast() {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const [lr, lg, lb] = [r, g, b].map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * lr + 0.7152 * lg + 0.0722 * lb;
  };
  const contrast = (one, other) => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const background = (element) => {
    for (let above = element; above; above = above.parentElement) {
      const color = rgba(getComputedStyle(above).backgroundColor);
      if (color[3] === 255) return color;
    }
    return rgba("Canvas");
  };
  const visible = (element) => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0;
  const owns = (element) => [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (!visible(element)) continue;
    const style = getComputedStyle(element);
    const line = element.matches("svg.plot .line, .bar rect");
    if (!line && !owns(element)) continue;
    const inSvg = element instanceof SVGElement;
    const color = line && element.matches(".line") ? style.stroke : inSvg ? style.fill : style.color;
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const least = line || large ? 3 : 4.5;
    const ratio = contrast(rgba(color), background(element));
    if (ratio < least) found.push(`${element.tagName} ${element.id || element.className.baseVal || element.className}: ${ratio.toFixed(2)} < ${least}`);
  }
  return found;
}
