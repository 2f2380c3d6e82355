/** Prints an object as a line of JSON. Ids and revisions stay below 2^53, so numbers hold them. */
export function tell(object: object): void {
  process.stdout.write(JSON.stringify(object) + "\n");
}
