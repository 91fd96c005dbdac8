// The values of an image file as grey, as floormark sees them.

const KINDS = "expected a PNG, JPEG, WebP or BMP image";

// Grey levels from 0 to 255, row by row: { height, width, values }.
export async function decoded(file) {
  const head = new DataView(await file.slice(0, 26).arrayBuffer());
  const png = head.byteLength === 26 && head.getUint32(0) === 0x89504e47;
  if (png && head.getUint8(24) === 16) {
    throw new Error("this image has 16 bits a value, of which browsers give 8: use floormark extract");
  }
  let bitmap;
  try {
    // As stored, whatever the colour profile, and turned as its orientation says.
    const options = { colorSpaceConversion: "none", premultiplyAlpha: "none", imageOrientation: "from-image" };
    bitmap = await createImageBitmap(file, options);
  } catch {
    throw new Error(`${KINDS}; for DICOM and TIFF use floormark extract`);
  }
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  const values = new Float32Array(width * height);
  for (let at = 0; at < values.length; at++) {
    values[at] = (data[4 * at] + data[4 * at + 1] + data[4 * at + 2]) / 3;
  }
  return { height, width, values };
}
