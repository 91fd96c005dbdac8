// Filters over grey pictures { height, width, values }, each as floormark has it in filters.py and registration.py.

export function picture(height, width, values = new Float32Array(height * width)) {
  return { height, width, values };
}

function clamp(at, length) {
  return at < 0 ? 0 : at >= length ? length - 1 : at;
}

// The mirror image beyond both ends, with the last value twice.
function mirrored(at, length) {
  while (at < 0 || at >= length) at = at < 0 ? -1 - at : 2 * length - 1 - at;
  return at;
}

// A picture of which each value is computed along its column, then along its row: value(line, place, length, down).
function alongBoth(given, value) {
  let found = given;
  for (const down of [true, false]) {
    const { height, width, values } = found;
    const length = down ? height : width;
    const line = new Float32Array(length);
    const next = picture(height, width);
    for (let other = 0; other < (down ? width : height); other++) {
      const first = down ? other : other * width;
      const step = down ? width : 1;
      for (let at = 0; at < length; at++) line[at] = values[first + at * step];
      for (let at = 0; at < length; at++) next.values[first + at * step] = value(line, at, length, down);
    }
    found = next;
  }
  return found;
}

export function gaussian(given, sigma, truncate = 4) {
  const reach = Math.floor(truncate * sigma + 0.5);
  const weights = Array.from({ length: reach + 1 }, (_, at) => Math.exp((-0.5 * at * at) / (sigma * sigma)));
  const sum = weights[0] + 2 * weights.slice(1).reduce((total, each) => total + each, 0);
  return alongBoth(given, (line, place, length) => {
    let total = line[place] * weights[0];
    for (let far = 1; far <= reach; far++) {
      total += (line[mirrored(place - far, length)] + line[mirrored(place + far, length)]) * weights[far];
    }
    return total / sum;
  });
}

export function uniform(given, size) {
  const before = Math.floor(size / 2);
  return alongBoth(given, (line, place, length) => {
    let total = 0;
    for (let at = place - before; at < place - before + size; at++) total += line[mirrored(at, length)];
    return total / size;
  });
}

function extreme(given, rows, columns, of) {
  return alongBoth(given, (line, place, length, down) => {
    const reach = Math.floor((down ? rows : columns) / 2);
    let found = line[place];
    for (let at = place - reach; at <= place + reach; at++) found = of(found, line[clamp(at, length)]);
    return found;
  });
}

export const highest = (given, rows, columns) => extreme(given, rows, columns, Math.max);
export const lowest = (given, rows, columns) => extreme(given, rows, columns, Math.min);

// The mean of each whole square of pixels.
export function shrunk(given, factor) {
  if (factor === 1) return given;
  const found = picture(Math.floor(given.height / factor), Math.floor(given.width / factor));
  for (let row = 0; row < found.height; row++) {
    for (let column = 0; column < found.width; column++) {
      let total = 0;
      for (let at = 0; at < factor * factor; at++) {
        const down = row * factor + Math.floor(at / factor);
        total += given.values[down * given.width + column * factor + (at % factor)];
      }
      found.values[row * found.width + column] = total / (factor * factor);
    }
  }
  return found;
}

// The four neighbours of a place between pixels, with the weights of a cubic that goes through them.
function cubic(place, length) {
  const first = Math.floor(place - 0.5);
  const d = place - 0.5 - first;
  const weights = [-d + 2 * d * d - d * d * d, 1 - 2 * d * d + d * d * d, d + d * d - d * d * d, d * d * d - d * d];
  return weights.map((weight, at) => [clamp(first - 1 + at, length), weight]);
}

// A picture at places that lie `scale` pixels apart; beyond its edges it goes on as it ends.
export function resampled(given, scale, height, width) {
  const across = Array.from({ length: width }, (_, at) => cubic(scale * (at + 0.5), given.width));
  const found = picture(height, width);
  for (let row = 0; row < height; row++) {
    for (const [down, share] of cubic(scale * (row + 0.5), given.height)) {
      for (let column = 0; column < width; column++) {
        let total = 0;
        for (const [at, weight] of across[column]) total += weight * given.values[down * given.width + at];
        found.values[row * width + column] += share * total;
      }
    }
  }
  return found;
}

// The two neighbours of each place when lines are drawn between the middles of pixels.
function linear(length, wanted) {
  return Array.from({ length: wanted }, (_, at) => {
    const place = ((at + 0.5) * length) / wanted - 0.5;
    const first = Math.floor(place);
    return [clamp(first, length), clamp(first + 1, length), place - first];
  });
}

function enlarged(given, height, width) {
  const [down, across] = [linear(given.height, height), linear(given.width, width)];
  const found = picture(height, width);
  for (let row = 0; row < height; row++) {
    const [above, below, share] = down[row];
    for (let column = 0; column < width; column++) {
      const [left, right, part] = across[column];
      const between = (line) =>
        (1 - part) * given.values[line * given.width + left] + part * given.values[line * given.width + right];
      found.values[row * width + column] = (1 - share) * between(above) + share * between(below);
    }
  }
  return found;
}

// Smooth values where some are missing: from coarser and coarser means of those that are there.
export function filled(given, missing) {
  if (!missing.includes(1)) return given;
  const { height, width, values } = given;
  if (!missing.includes(0) || Math.min(height, width) < 2) {
    const there = values.filter((_, at) => !missing[at]);
    const mean = there.length ? there.reduce((total, each) => total + each, 0) / there.length : 0;
    return picture(height, width, values.map((value, at) => (missing[at] ? mean : value)));
  }
  const half = picture(Math.ceil(height / 2), Math.ceil(width / 2));
  const counts = new Uint8Array(half.values.length);
  for (let at = 0; at < values.length; at++) {
    if (missing[at]) continue;
    const square = (Math.floor(at / width) >> 1) * half.width + ((at % width) >> 1);
    half.values[square] += values[at];
    counts[square]++;
  }
  for (let at = 0; at < counts.length; at++) half.values[at] /= Math.max(counts[at], 1);
  const smooth = enlarged(filled(half, counts.map((count) => (count ? 0 : 1))), height, width);
  return picture(height, width, values.map((value, at) => (missing[at] ? smooth.values[at] : value)));
}
