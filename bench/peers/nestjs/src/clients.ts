import { ServiceBusClient } from '@azure/service-bus';
import { Db, MongoClient } from 'mongodb';

import { settings } from './settings.js';

export const DATABASE = Symbol('database');
export const READ_MODELS = Symbol('read models');
export const SERVICE_BUS = Symbol('service bus');

const connected = new MongoClient(settings.mongodbUri, { writeConcern: { w: 'majority' } }).connect();

export const clients = [
  { provide: DATABASE, useFactory: async (): Promise<Db> => (await connected).db(settings.database) },
  { provide: READ_MODELS, useFactory: async (): Promise<Db> => (await connected).db(`${settings.database}_views`) },
  { provide: SERVICE_BUS, useFactory: () => new ServiceBusClient(settings.connectionString) },
];
