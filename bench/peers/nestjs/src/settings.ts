/** What the bench passes by environment. */
export const settings = {
  mongodbUri: required('MONGODB_URI'),
  database: required('DATABASE'),
  connectionString: required('SERVICE_BUS_CONNECTION_STRING'),
  topic: required('TOPIC'),
  subscription: required('SUBSCRIPTION'),
  /** `single`: one by one, as the notes have it; `tuned`: batches, side by side. */
  tuned: process.env.MODE === 'tuned',
};

function required(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
}
